"""Writes the tables and the picture of README.md from the result files.

python -m benchmarks.readme [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from contentrope.experiments.facts.presets import SHARP
from contentrope.reports import draw_picture, read_results
from contentrope.reports.facts.scaling import scaling_table
from contentrope.reports.facts.tables import order_table, row_table
from contentrope.reports.growth.tables import length_table
from contentrope.reports.retrofit.tables import perplexity_table
from contentrope.reports.tables import markdown_table as table

ROOT = Path(__file__).resolve().parent.parent
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


def length_section(results: dict[str, Any]) -> str:
    return length_table(results).markdown()


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


Section = tuple[str, Callable[[dict[str, Any]], str]]
SECTIONS: dict[str, Section] = {
    "cpu": ("benchmark-cpu.json", cpu_table),
    "gpu": ("benchmark-fused-gpu.json", gpu_table),
    "flex": ("benchmark-flex-gpu.json", gpu_table),
    "quick": ("shakespeare-quick.json", length_section),
    "paper": ("shakespeare-paper.json", length_section),
    "beyond": ("shakespeare-beyond.json", beyond_section),
    "facts": ("facts-quick.json", lambda results: row_table(results).markdown()),
    "facts-paper": ("facts-paper.json", facts_paper_section),
    "facts-beyond": ("facts-beyond.json", facts_beyond_section),
    "retrofit": ("retrofit-quick.json", lambda results: perplexity_table(results).markdown()),
    "training": ("benchmark-training-gpu.json", training_table),
}
PICTURES = ("shakespeare-paper", "shakespeare-beyond", "facts-paper", "facts-beyond", "retrofit-quick")
"""Result files whose main picture stands beside them."""


def with_tables(text: str) -> str:
    """The README with every marked section replaced by what the result files say now."""
    for name, (file, make) in SECTIONS.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        data = json.loads((ROOT / "results" / file).read_text())
        text = f"{before}{begin}\n{make(data)}\n{end}{after}"
    return text


def main() -> None:
    readme = ROOT / "README.md"
    current = readme.read_text()
    fresh = with_tables(current)
    if "--check" in sys.argv:
        sys.exit(None if fresh == current else "README.md does not show the newest results; run this without --check")
    readme.write_text(fresh)
    for name in PICTURES:
        draw_picture(read_results(ROOT / "results" / f"{name}.json"), ROOT / "results" / f"{name}.svg")


if __name__ == "__main__":
    main()
