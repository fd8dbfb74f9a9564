"""Writes the tables and pictures of README.md and docs/ from the result files.

python -m benchmarks.readme [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from contentrope.experiments.facts.presets import SHARP
from contentrope.experiments.first_weights import FirstWeights
from contentrope.facts import Layout
from contentrope.reports import draw_picture, read_results
from contentrope.reports.facts import paper
from contentrope.reports.facts.scaling import scaling_table
from contentrope.reports.facts.tables import order_table, row_table
from contentrope.reports.growth.tables import length_table
from contentrope.reports.retrofit.tables import perplexity_table
from contentrope.reports.tables import markdown_table as table
from contentrope.reports.timing.tables import TITLES, overhead_table

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CPU_ROWS = {
    "train_256": "training step, batch 16, 256 tokens",
    "train_1024": "training step, batch 16, 1,024 tokens",
    "decode_1024": "decode step, 1,024 cached tokens",
    "decode_4096": "decode step, 4,096 cached tokens",
    "decode_16384": "decode step, 16,384 cached tokens",
    "decode_4096_batch8": "decode step, 4,096 cached tokens, batch 8",
    "memory_256": "peak memory of training, 256 tokens",
    "memory_1024": "peak memory of training, 1,024 tokens",
}


def cpu_table(data: dict[str, Any]) -> str:
    plain, competing = data["results"]["content"], data["results"]["content, competition 1"]
    rows = []
    for key, name in CPU_ROWS.items():
        target = data["targets"].get(key)
        ours, other = (f"{r[key]['ratio']:.2f}x" if key in r else "" for r in (plain, competing))
        rows.append([name, ours, other, f"{target:.2f}x" if target else ""])
    return table(["", "content", "content, competition 1", "target"], rows)


def gpu_table(data: dict[str, Any]) -> str:
    """Called from Python, and as CUDA graphs where those were timed."""
    names = {"forward": "forward", "both": "forward + backward"}
    names |= {f"graph_{name}": f"{words}, graph" for name, words in names.items()}
    shown = {name: words for name, words in names.items() if f"{name}_ratio" in data["results"][0]}
    rows = [[f"{row['seq']:,}", *(f"{row[f'{name}_ratio']:.2f}x" for name in shown)] for row in data["results"]]
    return table(["tokens", *shown.values()], rows)


DECODED = {
    "content": "no exponent",
    "content, competition 1": "exponent 1",
    "content, competition learned": "exponents learned by layer and head",
}


def decode_table(data: dict[str, Any]) -> str:
    """By exponent: the ratio with its quartiles, and of the GPU's own work."""
    (size,), (cached,) = data["config"]["sizes"], data["config"]["cached"]
    found = {words: data["results"][f"{name}, {size}, {cached}"] for name, words in DECODED.items()}
    rows = [
        [
            words,
            f"{row['ratio']:.3f}x",
            f"{row['ratio_low']:.3f}x to {row['ratio_high']:.3f}x",
            f"{row['busy_ratio']:.3f}x",
        ]
        for words, row in found.items()
    ]
    return table(["competition", "decode step", "half of the runs", "the GPU's own work"], rows)


def addresses_table(data: dict[str, Any]) -> str:
    """Milliseconds of all slots by the library and of units by the kernels, and by how much results are off."""
    rows = [
        [
            row["row"],
            str(row["unit"]),
            *(f"{row[f'{side}_graph_{name}_ms']:.3f}" for name in ("forward", "both") for side in ("baseline", "ours")),
            *(f"{row[f'{side}_error']:.1e}" for side in ("baseline", "ours")),
        ]
        for row in data["results"]
    ]
    head = ["size", "tokens a unit", "library, forward, ms", "ours", "library, forward + backward, ms", "ours"]
    return table([*head, "library, error", "ours"], rows)


def length_section(results: dict[str, Any]) -> str:
    return length_table(results).markdown()


def summary_section(results: dict[str, Any]) -> str:
    """The paper's four rows, ours above its."""
    return length_table(results, ["content", "random", "alibi", "rope"]).markdown()


def beyond_section(results: dict[str, Any]) -> str:
    """The variants from best to worst at the longest length all seeds read; trained otherwise than in the paper."""
    longest = str(max(results["config"]["lengths"]))

    def at_the_end(name: str) -> float:
        return fmean(run["perplexity"][longest] for run in results["variants"][name]["runs"].values())

    return length_table(results, sorted(results["variants"], key=at_the_end), paper=False).markdown()


def training_table(data: dict[str, Any]) -> str:
    rows = [
        [name, f"{found['steps_per_second']:.0f}", f"{found['seconds_for_5000_steps']:.1f} s", f"{found['ratio']:.2f}x"]
        for name, found in data["results"].items()
    ]
    return table(["", "steps per second", "5,000 steps", "time, against rope"], rows)


def facts_paper_section(results: dict[str, Any]) -> str:
    return row_table(results, variants=["content", "content:competition=1", "rope", "random"]).markdown()


def facts_beyond_section(results: dict[str, Any]) -> str:
    """Without the options content and random addresses share there, which would be most of a table."""
    tables = row_table(results), scaling_table(results), order_table(results)
    text = "\n\n".join(table.markdown() for table in tables if table is not None)
    return text.replace(f":{SHARP},memory=true", ", facts as memory units").replace(f":{SHARP}", "")


def timing_section(results: dict[str, Any]) -> str:
    """A table for each acceleration."""
    found = {name: overhead_table(results, name).markdown() for name in results["config"]["accelerations"]}
    return "\n\n".join(f"{TITLES[name]}:\n\n{text}" for name, text in found.items())


CHOICES = ("single fact", "same entities", "same relation")
EXPONENTS = ("0", "0.5", "1")


def choices_table(files: dict[str, dict[str, Any]]) -> str:
    """Content addresses by what the paper leaves open: hit@5 on unseen names, pairs and triples."""
    head = ["first weights", "facts end", "schedule", "decay", "rate", "steps", "seeds", CHOICES[0]]
    head += [f"{condition}, exponent {exponent}" for condition in CHOICES[1:] for exponent in EXPONENTS]
    rows = [_choice(results) for results in sorted(files.values(), key=_order_of_choice)]
    theirs = paper.TABLE["hit5"][paper.CONTENT]
    printed = [_pair(lambda row: theirs[row], condition) for condition in CHOICES]
    blank = [""] * (len(EXPONENTS) - 1)
    return table(
        head, [*rows, ["*paper*", *[""] * 3, "5e-4", "100,000", "", printed[0], printed[1], *blank, printed[2], *blank]]
    )


def _order_of_choice(results: dict[str, Any]) -> tuple[Any, ...]:
    config = results["config"]
    first_weights = get_args(FirstWeights).index(config["initialisation"])
    layout = get_args(Layout).index(config["layout"])
    return config["training"]["steps"], first_weights, config["training"]["schedule"] == "constant", layout


def _choice(results: dict[str, Any]) -> list[str]:
    config, runs = results["config"], list(results["variants"]["content"]["runs"].values())
    training = config["training"]
    settings = [config["initialisation"], config["layout"], training["schedule"], f"{training['weight_decay']:g}"]

    def under(exponent: str) -> Callable[[str], float]:
        found = [run["rows"] if exponent == "0" else run["exponents"][exponent] for run in runs]
        return lambda row: fmean(rows[row]["hit5"] for rows in found)

    among = [_pair(under(exponent), condition) for condition in CHOICES[1:] for exponent in EXPONENTS]
    rate = f"{training['learning_rate']:.0e}".replace("e-0", "e-")
    return [*settings, rate, f"{training['steps']:,}", str(len(runs)), _pair(under("0"), CHOICES[0]), *among]


def _pair(hit: Callable[[str], float], condition: str) -> str:
    return ", ".join(f"{hit(f'{condition}, {kind}, test'):.3f}".removeprefix("0") for kind in ("chain2", "chain3"))


Section = tuple[str, Callable[[dict[str, Any]], str]]
SECTIONS: dict[str, Section] = {  # a file, or a folder of files by name
    "cpu": ("benchmark-cpu.json", cpu_table),
    "gpu": ("benchmark-fused-gpu.json", gpu_table),
    "decode": ("benchmark-decode-cuda.json", decode_table),
    "flex": ("benchmark-flex-gpu.json", gpu_table),
    "quick": ("shakespeare-quick.json", length_section),
    "paper": ("shakespeare-paper.json", length_section),
    "summary": ("shakespeare-paper.json", summary_section),
    "beyond": ("shakespeare-beyond.json", beyond_section),
    "facts": ("facts-quick.json", lambda results: row_table(results).markdown()),
    "facts-paper": ("facts-paper.json", facts_paper_section),
    "facts-beyond": ("facts-beyond.json", facts_beyond_section),
    "facts-choices": ("facts-choices", choices_table),
    "retrofit": ("retrofit-quick.json", lambda results: perplexity_table(results).markdown()),
    "retrofit-paper": ("retrofit-paper.json", lambda results: perplexity_table(results).markdown()),
    "retrofit-shakespeare": ("retrofit-shakespeare.json", lambda results: perplexity_table(results).markdown()),
    "timing": ("timing-paper.json", timing_section),
    "addresses": ("benchmark-addresses-gpu.json", addresses_table),
    "training": ("benchmark-training-gpu.json", training_table),
}
PICTURES = (
    "shakespeare-paper",
    "shakespeare-beyond",
    "facts-paper",
    "facts-beyond",
    "retrofit-quick",
    "retrofit-paper",
)
"""Result files whose main picture stands beside them."""
FRONT = ("retrofit-paper", ("untouched", "content", "content:anchors=[1]", "ntk:factor=16", "yarn:factor=16"))
"""What the README's own picture shows: a result file, and some of its variants."""


def draw_front(path: Path) -> None:
    name, variants = FRONT
    results = read_results(ROOT / "results" / f"{name}.json")
    shown = {variant: results["variants"][variant] for variant in variants}
    draw_picture({**results, "variants": shown, "config": {**results["config"], "variants": list(variants)}}, path)


def with_tables(text: str) -> str:
    """The document with every marked section replaced by what the result files say now."""
    for name, (file, make) in SECTIONS.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin in text:
            before, rest = text.split(begin)
            _, after = rest.split(end)
            text = f"{before}{begin}\n{make(_read(ROOT / 'results' / file))}\n{end}{after}"
    return text


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return {file.stem: _read(file) for file in sorted(path.glob("*.json"))}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def main() -> None:
    stale = [path for path in DOCUMENTS if with_tables(path.read_text()) != path.read_text()]
    if "--check" in sys.argv:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"not the newest results in {names}; run this without --check" if stale else None)
    for path in stale:
        path.write_text(with_tables(path.read_text()))
    for name in PICTURES:
        draw_picture(read_results(ROOT / "results" / f"{name}.json"), ROOT / "results" / f"{name}.svg")
    draw_front(ROOT / "results" / "readme.svg")


if __name__ == "__main__":
    main()
