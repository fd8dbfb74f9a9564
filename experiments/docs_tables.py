"""Fills the tables and pictures of README.md and docs/ from the result files.

python -m experiments.docs_tables [--check]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.facts import CONDITIONS
from experiments.facts.plot import HIT, PAPER, order_table, row_table, scaling_table, scores
from experiments.growth.plot import length_table, lengths
from experiments.open_model import plot as open_model
from experiments.report import markdown, write_figure
from experiments.results import ResultError, Results, numbers, read, variants
from experiments.retrofit.plot import perplexity_table
from experiments.tables import Cell, Table
from experiments.timing.plot import accelerations, overhead_table

ROOT = Path(__file__).resolve().parent.parent
SHARP = ":competition=1,sharpness=0.3,learn_sharpness=true"
"""What content and random addresses share in facts-beyond, which would be most of its tables."""


def plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(list(head), [[Cell(text) for text in row] for row in rows])


def ratio(value: float | None, decimals: int = 2) -> str:
    return "" if value is None else f"{value:.{decimals}f}x"


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


# --- benchmarks ----------------------------------------------------------------------------------------------------

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
GPU_COLUMNS = {
    "forward": "forward",
    "both": "forward + backward",
    "graph_forward": "forward, graph",
    "graph_both": "forward + backward, graph",
}
DECODED = {
    "content": "no exponent",
    "content, competition 1": "exponent 1",
    "content, competition learned": "exponents learned by layer and head",
    "content, window 1024": "window 1,024, exponent 1",
}


def cpu(data: Results) -> list[Table]:
    """By scheme: the ratio, and behind it the target if there is one."""
    rows = []
    for key, words in CPU_ROWS.items():
        cells = [words]
        for scheme, found in data["results"].items():
            target = data["targets"].get(scheme, {}).get(key)
            cells.append(ratio(found.get(key, {}).get("ratio")) + (f" ({ratio(target)})" if target else ""))
        rows.append(cells)
    return [plain(["", *data["results"]], rows)]


def gpu(data: Results) -> list[Table]:
    """Called from Python, and as CUDA graphs where those were timed."""
    shown = [name for name in GPU_COLUMNS if f"{name}_ratio" in data["results"][0]]
    rows = [
        [f"{row.get('window', 0):,}", f"{row['seq']:,}", *(ratio(row[f"{name}_ratio"]) for name in shown)]
        for row in data["results"]
    ]
    return [plain(["window", "tokens", *(GPU_COLUMNS[name] for name in shown)], rows)]


def decode(data: Results) -> list[Table]:
    """By scheme: the ratio with its quartiles, and of the GPU's own work."""
    (size,), rows = data["config"]["sizes"], []
    for cached, name in ((cached, name) for cached in data["config"]["cached"] for name in data["config"]["schemes"]):
        found = {key: ratio(value, 3) for key, value in data["results"][f"{name}, {size}, {cached}"].items()}
        quartiles = f"{found['ratio_low']} to {found['ratio_high']}"
        rows.append([f"{cached:,}", DECODED[name], found["ratio"], quartiles, found["busy_ratio"]])
    return [plain(["cached", "competition", "decode step", "interquartile range", "the GPU's own work"], rows)]


def hf_training(files: Sequence[Results]) -> list[Table]:
    """Steps of attached models, against those untouched; and of the GPU's own work."""
    rows = []
    for config, found in ((data["config"], data["results"]) for data in files):
        ratios = found["ratio"], found["busy_ratio"], found["ours_peak_bytes"] / found["baseline_peak_bytes"]
        how = "compiled" if config["compile"] else "not compiled"
        what = f"{config['batch']} x {config['context']:,}", f"{config['window']:,}", how
        times = (f"{1e3 * found[f'{side}_seconds']:.0f} ms" for side in ("ours", "baseline"))
        rows.append([*what, *times, *map(ratio, ratios)])
    return [plain(["rows", "window", "", "attached", "untouched", "ratio", "the GPU's own work", "memory"], rows)]


def addresses(data: Results) -> list[Table]:
    """Milliseconds of all slots by the library and of units by the kernels, and by how much results are off."""
    head = ["size", "tokens a unit", "library, forward, ms", "ours", "library, forward + backward, ms", "ours"]
    times = [f"{side}_graph_{name}_ms" for name in ("forward", "both") for side in ("baseline", "ours")]
    rows = [
        [row["row"], str(row["unit"]), *(f"{row[time]:.3f}" for time in times)]
        + [f"{row[f'{side}_error']:.1e}" for side in ("baseline", "ours")]
        for row in data["results"]
    ]
    return [plain([*head, "library, error", "ours"], rows)]


def training(data: Results) -> list[Table]:
    rows = [
        [name, f"{found['steps_per_second']:.0f}", f"{found['seconds_for_5000_steps']:.1f} s", ratio(found["ratio"])]
        for name, found in data["results"].items()
    ]
    return [plain(["", "steps per second", "5,000 steps", "time, against rope"], rows)]


def rounding(files: Sequence[Results]) -> list[Table]:
    """The largest differences found at random, relative to the largest logit, by how large the weights are."""
    worst = {area: found for data in files for area, found in data["worst"].items()}
    columns = [("streams", ""), ("caches", ""), ("streams", "order of memory units, ")]
    rows = [
        [f"{scale:.1f} / sqrt(n)", *(f"{worst[area][f'{of}float64, weights x{times}']:.0e}" for area, of in columns)]
        for times, scale in (("0.5", 0.6), ("1", 1.2), ("2", 2.4), ("4", 4.8), ("8", 9.6))
    ]
    return [
        plain(["weights", "chunks against the whole", "cache against each row anew", "order of memory units"], rows)
    ]


class Larger(NamedTuple):
    """A model's sizes, as its maker tells them."""

    name: str
    parameters: float
    layers: int
    width: int


LARGER = (
    Larger("SmolLM2-135M", 134.5e6, 30, 576),
    Larger("1B (Llama 3.2)", 1.24e9, 16, 2048),
    Larger("8B (Llama 3.1)", 8.03e9, 32, 4096),
    Larger("70B (Llama 3.1)", 70.6e9, 80, 8192),
)
PRESET_TOKENS = 1000 * 4 * 8192
"""What the full preset trains a conversion on: updates, rows, tokens of a row."""
DENSE_BF16 = 989e12
"""Operations a second of an H200, by its data sheet."""
OF_TRAINING, OF_LORA = 16, 2
"""Bytes a parameter: weights, gradients and two moments in float32; or frozen weights in bfloat16."""


def operations(model: Larger, length: int) -> float:
    """Of a trained token: 6 for each parameter, and 6 T d in each layer for the scores and values of T/2 keys."""
    return 6 * model.parameters + 6 * model.layers * model.width * length


def conversion_costs(data: Results) -> list[Table]:
    """GPU hours and memory of larger conversions, at the share of the peak that was measured with the smallest."""
    length, rate = data["config"]["context"], data["results"]["ours_tokens_per_second"]
    share = rate * operations(LARGER[0], length) / DENSE_BF16
    rows = []
    for model in LARGER:
        hours = PRESET_TOKENS * operations(model, length) / (share * DENSE_BF16) / 3600
        sizes = (f"{model.parameters * size / 1e9:,.1f} GB" for size in (OF_TRAINING, OF_LORA))
        amounts = f"{PRESET_TOKENS / 1e6:.1f} million", f"{operations(model, length) / 1e9:,.1f} billion"
        rows.append([model.name, *amounts, f"{hours:,.2f}", *sizes])
    head = ["model", "tokens", "operations a token", "GPU hours", "all weights trained", "LoRA"]
    return [plain([*head], [*rows, ["share of the peak that this assumes", "", "", f"{100 * share:.0f}%", "", ""]])]


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
    "open-model-quick": ("open-model-quick.json", lambda results: [open_model.perplexity_table(results)]),
    "open-model-quick-tasks": ("open-model-quick.json", open_model.task_tables),
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
