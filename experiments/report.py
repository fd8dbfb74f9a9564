"""The report of a result file: tables and figures as one HTML page that needs nothing else, and as Markdown.

python -m experiments.report RESULTS.json [--out DIR]
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from contentrope.errors import InputError
from contentrope.files import require_replaceable, write_whole
from contentrope.outputs import REPORT, OutputFolder
from experiments import drawing
from experiments.drawing import Plot
from experiments.facts import plot as facts
from experiments.growth import plot as growth
from experiments.open_model import plot as open_model
from experiments.reader import plot as reader
from experiments.results import ResultError, Results, all_runs, is_gone, missing, read, seeds
from experiments.retrofit import plot as retrofit
from experiments.tables import Cell, Table
from experiments.timing import plot as timing

MODULES: dict[str, ModuleType] = {
    "growth": growth,
    "facts": facts,
    "retrofit": retrofit,
    "timing": timing,
    "open_model": open_model,
    "reader": reader,
}
"""Each has a title, tables and figures of a result; no other module knows all experiments."""
KEY = (
    "Numbers are means ± standard deviations over seeds; one without ± is from one seed. The best of those compared is "
    "bold, the paper's numbers are in italics, – is a number that is missing or infinite."
)
PAGES = ("report.html", "report.md")
REPORT_TIME = 60.0
"""Seconds that another report of the same folder may take."""
CUSTOM = "custom"
"""The preset of settings that are no preset's."""
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading a foreign file can come to."""


@dataclass
class Section:
    title: str
    plots: list[Plot]
    tables: list[Table]


def tables(path: Path) -> list[Table]:
    """All tables of a result file."""
    results = read(path)
    with _refusing(path):
        return list(MODULES[results["experiment"]].tables(results))


def write_report(path: Path, folder: Path | None = None) -> list[Path]:
    """Write report.html, report.md and the figures beside the result file, or into a folder, and tell their paths.

    Only what a report has written is replaced.
    """
    files, folder = _files(path), folder or (path if path.is_dir() else path.parent)
    with _held(folder):
        return _write(files, folder)


def claim(folder: Path) -> None:
    """Refuse, before any work is done, a report that could not be written after it. One of a folder that lost its
    record is known by its content: it is made again from the results there are."""
    with _held(folder) as held:
        if (folder / "results.json").exists() and any((folder / name).exists() for name in PAGES):
            _write(_files(folder), folder)
        held.claim(*PAGES)


def _held(folder: Path) -> OutputFolder:
    # Not the lock of the experiment: reports are made while it runs too.
    return OutputFolder(folder, "report", part=REPORT, patience=REPORT_TIME)


def _write(files: Mapping[str, str], folder: Path) -> list[Path]:
    places = {folder / name: text.encode() for name, text in files.items()}
    require_replaceable(places)
    for place, data in places.items():
        write_whole(place, data)
    return list(places)


def write_figure(path: Path, name: str, to: Path, variants: Sequence[str] | None = None) -> None:
    """Write one figure of a result file as SVG; of some of its ``variants``, if they are named."""
    results = read(path)
    with _refusing(path), drawing.style():
        if variants is not None:
            results = {**results, "variants": {variant: results["variants"][variant] for variant in variants}}
        found = {plot.name: plot for plot in MODULES[results["experiment"]].figures(results)}
        to.write_text(drawing.svg(found[name].figure), encoding="utf-8")


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turns what a foreign file does to a report into one sentence that names the file."""
    try:
        yield
    except UNREADABLE as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ResultError(f"{path} cannot be shown, its parts are not those of a result: {reason}") from error


# --- what a report says --------------------------------------------------------------------------------------------


def _files(path: Path) -> dict[str, str]:
    """The report of a result file, by the names of its files."""
    results = read(path)
    with _refusing(path), drawing.style():
        return _rendered(results)


def _rendered(results: Results) -> dict[str, str]:
    module = MODULES[results["experiment"]]
    plots = module.figures(results)
    drawn = {plot.name: drawing.svg(plot.figure) for plot in plots}
    said = {
        "title": module.title(results),
        "key": KEY,
        "missing": missing(results),
        "sections": _sections(module.tables(results), plots),
        "pictures": {name: Markup(drawing.inline(text, name)) for name, text in drawn.items()},
        "command": command(results),
        "rebuild": f"python -m experiments.report {shlex.quote(f'{_folder(results)}/results.json')}",
        "settings": [_settings(results), _environment(results)],
    }
    reports = {name: TEMPLATES.get_template(f"{name}.jinja").render(said) for name in PAGES}
    return reports | {f"{name}.svg": text for name, text in drawn.items()}


def _sections(tables: Sequence[Table], plots: Sequence[Plot]) -> list[Section]:
    titles = dict.fromkeys([*(table.title for table in tables), *(plot.title for plot in plots)])
    found = {title: Section(title, [], []) for title in titles}
    for plot in plots:
        found[plot.title].plots.append(plot)
    for table in tables:
        found[table.title].tables += [table] if table.rows else []
    return [section for section in found.values() if section.plots or section.tables]


def command(results: Results) -> str:
    """The command that repeats the experiment, as far as this version can: the options it was given, or its preset."""
    asked, names = results.get("asked"), [n for n in results["config"].get("variants") or () if not is_gone(n)]
    parts = ["python", "-m", "experiments", results["experiment"]]
    if isinstance(asked, list):
        parts += [*map(str, asked), *(["--variants", *names] if names else [])]
    elif _preset(results) != CUSTOM:
        parts += ["--preset", _preset(results)]
    parts += ["--measures", *results["config"]["measures"]] if results["config"].get("measures") else []
    parts += ["--seeds", str(len(seeds(results)))] if seeds(results) else []
    return shlex.join([*parts, "--out", _folder(results)])


def _preset(results: Results) -> str:
    return str(results.get("preset") or CUSTOM)


def _folder(results: Results) -> str:
    """A folder to write to: not the one this report lies in, which another reader does not have."""
    return f"runs/{results['experiment']}-{_preset(results)}"


def _settings(results: Results) -> Table:
    parts = {"preset": _preset(results), **results["config"], "corpus": results["corpus"]}
    rows = [[Cell(name), Cell(_shown(value))] for name, value in _flat(parts)]
    return Table(["setting", "value"], rows, "Settings")


def _flat(parts: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _environment(results: Results) -> Table:
    """Everything the runs were made on: a resumed experiment may have seen two machines."""
    places = [results.get("environment"), *(run.get("environment") for run in all_runs(results))]
    known = [place for place in places if place]
    names = dict.fromkeys(name for place in known for name in place)
    found = {name: dict.fromkeys(str(place[name]) for place in known if place.get(name)) for name in names}
    times = sorted(found.pop("time", {}))
    span = {"time": dict.fromkeys([*times[:1], *times[-1:]])} if times else {}
    rows = [[Cell(name), Cell(" and ".join(said))] for name, said in (found | span).items() if said]
    return Table(["machine", "value"], rows, "Environment")


# --- templates -----------------------------------------------------------------------------------------------------


def markdown(table: Table) -> str:
    """A table as it stands in a Markdown document.

    >>> print(markdown(Table(["", "256"], [[Cell("a|b"), Cell("4.40", "best")]])))
    |  | 256 |
    | --- | --- |
    | a\\|b | **4.40** |
    """
    return TEMPLATES.get_template("table.md.jinja").render(table=table).strip("\n")


def _plain(text: str) -> str:
    """Plain text as Markdown: nothing in it becomes a tag, a link, a column or emphasis."""
    for sign in "\\`*[|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())


def _cell(cell: Cell) -> str:
    around = {"plain": "", "best": "**", "paper": "*"}[cell.style] if cell.text else ""
    return f"{around}{_plain(cell.text)}{around}"


def _breakable(text: str) -> Markup:
    """A name that may be broken behind its commas and colons, where a screen is narrow."""
    return Markup(re.sub(r"([,:])(?=[a-z])", r"\1<wbr>", str(escape(text))))


def _tagged(cell: Cell) -> Markup:
    tag = {"plain": "", "best": "strong", "paper": "em"}[cell.style] if cell.text else ""
    return Markup(f"<{tag}>{_breakable(cell.text)}</{tag}>") if tag else _breakable(cell.text)


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=lambda name: bool(name and ".html" in name),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "plain": _plain, "rule": lambda _: "---", "cell": _cell, "breakable": _breakable, "tagged": _tagged,
}  # fmt: skip


def show(path: Path, folder: Path | None = None) -> None:
    """Print the first tables and what is missing, write the report and say where it is."""
    for table in [table for table in tables(path) if table.rows][:2]:
        print(f"{table.caption}\n\n{table.text()}\n")
    written = write_report(path, folder)
    print(*(f"not finished yet: {left}\n" for left in missing(read(path))), sep="", end="")
    print(*(f"written: {file}" for file in written), sep="\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a result; status 2 for what is none."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description="Write the report of a result.")
    parser.add_argument("results", type=Path, metavar="RESULTS.json", help="result file, or the folder it lies in")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: that of the result file)")
    options = parser.parse_args(arguments)
    try:
        show(options.results, options.out)
    except (ResultError, InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
