"""Fills the tables and pictures of README.md and docs/ from the result files.

python -m experiments.docs_tables [--check]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmark_tables import (
    addresses,
    conversion_costs,
    cpu,
    decode,
    gpu,
    hf_training,
    plain,
    rounding,
    store,
    store_decoding,
    store_growth,
    store_precision,
    store_precision_costs,
    training,
)
from experiments.facts import CONDITIONS
from experiments.facts.plot import HIT, PAPER, order_table, row_table, scaling_table, scores
from experiments.growth.plot import length_table, lengths
from experiments.open_model import plot as open_model
from experiments.reader import plot as reader
from experiments.report import markdown, write_figure
from experiments.results import ResultError, Results, numbers, read, variants
from experiments.retrofit.plot import perplexity_table
from experiments.tables import Cell, Table
from experiments.timing.plot import accelerations, overhead_table

ROOT = Path(__file__).resolve().parent.parent
SHARP = ":competition=1,sharpness=0.3,learn_sharpness=true"
"""What content and random addresses share in facts-beyond, which would be most of its tables."""


# --- experiments ---------------------------------------------------------------------------------------------------


def growth_summary(results: Results) -> list[Table]:
    """The paper's four rows, ours above its."""
    return [length_table(results, ["content", "random", "alibi", "rope"])]


def growth_beyond(results: Results) -> list[Table]:
    """From best to worst at the longest length all seeds read; trained otherwise than in the paper."""
    once = results["config"]["once"]
    longest = str(max(length for length in lengths(results) if length not in once))
    found = {name: numbers(results, name, "perplexity", longest) for name in variants(results)}
    at_the_end = {name: value.mean for name, value in found.items() if value}
    return [length_table(results, sorted(at_the_end, key=lambda name: at_the_end[name]), against_paper=False)]


def facts_paper(results: Results) -> list[Table]:
    return [row_table(results, names=["content", "content:competition=1", "rope", "random"])]


def facts_beyond(results: Results) -> list[Table]:
    found = row_table(results), scaling_table(results), order_table(results)
    return [_shorter(table) for table in found if table is not None]


def _shorter(table: Table) -> Table:
    def short(text: str) -> str:
        return text.replace(f"{SHARP},memory=true", ", facts as memory units").replace(SHARP, "")

    rows = [[Cell(short(cell.text), cell.style) for cell in row] for row in table.rows]
    return Table(list(map(short, table.head)), rows)


def timing(results: Results) -> list[Table]:
    return [overhead_table(results, name) for name in accelerations(results)]


def reader_numbers(results: Results) -> list[Table]:
    found = {what: reader.number_table(results, what) for what in ("f1", "seconds")}
    return [replace(table, title=reader.HEADS[what]) for what, table in found.items() if table is not None]


def reader_orders(results: Results) -> list[Table]:
    table = reader.order_table(results)
    return [] if table is None else [table]


EXPONENTS = ("0", "0.5", "1")
HALF_OF_THE_LAST_DIGIT = 5e-4
"""Of what the paper prints."""
INITIALISATIONS, LAYOUTS = ("small", "linear", "torch", "torch-all"), ("end", "apart", "bar")


def facts_choices(files: Sequence[Results]) -> list[Table]:
    """Content addresses by what the paper leaves open: hit@5 on unseen names, pairs and triples."""
    head = ["initialisation", "facts end", "schedule", "decay", "rate", "steps", "seeds", CONDITIONS[0]]
    head += [f"{condition}, exponent {exponent}" for condition in CONDITIONS[1:] for exponent in EXPONENTS]
    table = plain(head, [_choice(results) for results in sorted(files, key=_order)])
    single, entities, relation = (_pair(PAPER[HIT]["content"], condition) for condition in CONDITIONS)
    theirs = ["", "", "", "5e-4", "100,000", "", single, entities, "", "", relation, "", ""]
    return [Table(head, [*table.rows, [Cell("paper", "paper"), *map(Cell, theirs)]])]


def facts_memory(results: Results) -> list[Table]:
    """Facts as memory units, by the exponent they are read under, and in how many rows the paper is reached."""
    variant, paper = "content:memory=true", PAPER[HIT]["content"]
    exponents = ["0", *results["config"]["exponents"]]
    found = {e: scores(results, variant, HIT, *(("exponents", f"{e:g}") if e != "0" else ())) for e in exponents}
    rows = [[row, *(hits[row].text(3) for hits in found.values()), f"{paper[row]:.3f}"] for row in paper]
    reached = [
        str(sum(hits[row].mean >= paper[row] - HALF_OF_THE_LAST_DIGIT for row in paper)) for hits in found.values()
    ]
    head = ["facts, kind, names", *(f"exponent {e}" for e in exponents), "paper"]
    return [plain(head, [*rows, ["rows at or above the paper", *reached, ""]])]


def _order(results: Results) -> tuple[int, int, bool, int]:
    config, training = results["config"], results["config"]["training"]
    first_weights, layout = INITIALISATIONS.index(config["initialisation"]), LAYOUTS.index(config["layout"])
    return training["steps"], first_weights, training["schedule"] == "constant", layout


def _choice(results: Results) -> list[str]:
    config, training = results["config"], results["config"]["training"]
    paths = {exponent: ("rows",) if exponent == "0" else ("exponents", exponent) for exponent in EXPONENTS}
    found = {exponent: scores(results, "content", HIT, *path) for exponent, path in paths.items()}
    hits = {exponent: {row: hit.mean for row, hit in by_row.items()} for exponent, by_row in found.items()}
    return [
        config["initialisation"],
        config["layout"],
        training["schedule"],
        f"{training['weight_decay']:g}",
        f"{training['learning_rate']:.0e}".replace("e-0", "e-"),
        f"{training['steps']:,}",
        str(len(results["variants"]["content"]["runs"])),
        _pair(hits["0"], CONDITIONS[0]),
        *(_pair(hits[exponent], condition) for condition in CONDITIONS[1:] for exponent in EXPONENTS),
    ]


def _pair(hits: Mapping[str, float], condition: str) -> str:
    return ", ".join(f"{hits[f'{condition}, {kind}, test']:.3f}".removeprefix("0") for kind in ("chain2", "chain3"))


# --- documents -----------------------------------------------------------------------------------------------------

SECTIONS: dict[str, tuple[str | tuple[str, ...], Callable[[Any], list[Table]]]] = {
    "cpu": ("benchmark-cpu.json", cpu),
    "gpu": ("benchmark-fused-gpu.json", gpu),
    "gpu-window": ("benchmark-fused-window-gpu.json", gpu),
    "decode": ("benchmark-decode-cuda.json", decode),
    "decode-window": ("benchmark-decode-window-cuda.json", decode),
    "hf-window": (
        ("benchmark-hf-train-window-2048-cuda.json", "benchmark-hf-train-window-8192-cuda.json"),
        hf_training,
    ),
    "flex": ("benchmark-flex-gpu.json", gpu),
    "quick": ("shakespeare-quick.json", lambda results: [length_table(results)]),
    "paper": ("shakespeare-paper.json", lambda results: [length_table(results)]),
    "summary": ("shakespeare-paper.json", growth_summary),
    "beyond": ("shakespeare-beyond.json", growth_beyond),
    "growth-search": ("growth-search.json", growth_beyond),
    "facts": ("facts-quick.json", lambda results: [row_table(results)]),
    "facts-paper": ("facts-paper.json", facts_paper),
    "facts-beyond": ("facts-beyond.json", facts_beyond),
    "facts-choices": ("facts-choices", facts_choices),
    "facts-memory": ("facts-memory.json", facts_memory),
    "retrofit": ("retrofit-quick.json", lambda results: [perplexity_table(results)]),
    "retrofit-window": ("retrofit-window.json", lambda results: [perplexity_table(results)]),
    "retrofit-paper": ("retrofit-paper.json", lambda results: [perplexity_table(results)]),
    "retrofit-shakespeare": ("retrofit-shakespeare.json", lambda results: [perplexity_table(results)]),
    "timing": ("timing-paper.json", timing),
    "addresses": ("benchmark-addresses-gpu.json", addresses),
    "training": ("benchmark-training-gpu.json", training),
    "rounding": ("fuzz", rounding),
    "conversion-costs": ("benchmark-hf-train-window-8192-cuda.json", conversion_costs),
    "store": ("benchmark-store-cpu.json", store),
    "store-growth": ("benchmark-store-growth-cpu.json", store_growth),
    "store-decoding": ("benchmark-store-growth-cpu.json", store_decoding),
    "store-precision": ("benchmark-store-precision-cpu.json", store_precision),
    "store-precision-costs": ("benchmark-store-precision-cpu.json", store_precision_costs),
    "open-model-quick": ("open-model-quick.json", lambda results: [open_model.perplexity_table(results)]),
    "open-model-quick-tasks": ("open-model-quick.json", open_model.task_tables),
    "reader-quick": ("reader-quick.json", reader_numbers),
    "reader-quick-orders": ("reader-quick.json", reader_orders),
}
"""By the name between ``<!-- name -->`` and ``<!-- /name -->``: a result file, several, or a folder; and its tables."""


class Figure(NamedTuple):
    """One figure of a result file, of all its variants or of some."""

    source: str
    name: str
    variants: tuple[str, ...] | None = None


FIGURES = {
    "readme": Figure("retrofit-paper", "curve", ("untouched", "content", "ntk:factor=16", "yarn:factor=16")),
    "shakespeare-paper": Figure("shakespeare-paper", "curve"),
    "shakespeare-beyond": Figure("shakespeare-beyond", "curve"),
    "facts-paper": Figure("facts-paper", "hits"),
    "facts-beyond": Figure("facts-beyond", "hits"),
    "retrofit-quick": Figure("retrofit-quick", "curve"),
    "retrofit-paper": Figure("retrofit-paper", "curve"),
    "open-model-quick": Figure("open-model-quick", "curve"),
    "reader-quick": Figure("reader-quick", "numbers"),
}
"""What lies in results/ as SVG, by its name."""


def section(name: str, root: Path = ROOT) -> str:
    """The tables of a section, with a title where they have different ones."""
    file, make = SECTIONS[name]
    data = (
        [_read(root / "results" / name) for name in file] if isinstance(file, tuple) else _read(root / "results" / file)
    )
    found = make(data)
    titled = len({table.title for table in found}) > 1
    return "\n\n".join(f"{table.title}:\n\n{markdown(table)}" if titled else markdown(table) for table in found)


def _read(path: Path) -> Any:
    if path.is_dir():
        return [_read(file) for file in sorted(path.glob("*.json"))]
    data = json.loads(path.read_text(encoding="utf-8"))
    return read(path) if "experiment" in data else data


def documents(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def filled(text: str, root: Path = ROOT) -> str:
    """A document with every marked section replaced by what the result files say now."""
    for name in SECTIONS:
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin in text or end in text:
            if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
                raise ResultError(f"a document needs {begin} once, and {end} once behind it")
            before, (_, after) = text[: text.index(begin)], text[text.index(begin) :].split(end)
            text = f"{before}{begin}\n{section(name, root)}\n{end}{after}"
    return text


def stale_documents(root: Path = ROOT) -> list[Path]:
    texts = {path: path.read_text(encoding="utf-8") for path in documents(root)}
    return [path for path, text in texts.items() if filled(text, root) != text]


def stale_figures(root: Path = ROOT) -> list[Path]:
    """Those that were drawn from another file than lies there now."""
    paths = [root / "results" / f"{name}.svg" for name in FIGURES]
    return [path for path in paths if not path.exists() or _mark(path) not in path.read_text(encoding="utf-8")]


def _mark(figure: Path) -> str:
    source = figure.with_name(f"{FIGURES[figure.stem].source}.json")
    return f"<!-- drawn from {source.name}, sha256 {hashlib.sha256(source.read_bytes()).hexdigest()} -->"


def fill(root: Path = ROOT) -> list[Path]:
    """Write what is stale anew."""
    texts, figures = stale_documents(root), stale_figures(root)
    for path in texts:
        path.write_text(filled(path.read_text(encoding="utf-8"), root), encoding="utf-8")
    for path in figures:
        figure = FIGURES[path.stem]
        write_figure(path.with_name(f"{figure.source}.json"), figure.name, path, figure.variants)
        path.write_text(f"{path.read_text(encoding='utf-8')}{_mark(path)}\n", encoding="utf-8")
    return [*texts, *figures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, or with --check tell what is stale with status 1."""
    parser = argparse.ArgumentParser(prog="python -m experiments.docs_tables", description="Fill the documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where something is stale")
    check = parser.parse_args(arguments).check
    try:
        found = [*stale_documents(), *stale_figures()] if check else fill()
    except (ResultError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in found:
        print(f"{'not from the newest results' if check else 'written'}: {path.relative_to(ROOT)}")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
