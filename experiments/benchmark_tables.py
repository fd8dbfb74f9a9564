"""Tables of the benchmarks' result files, and what is derived from them, for the documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.results import Results
from experiments.tables import Cell, Table


def plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(list(head), [[Cell(text) for text in row] for row in rows])


def ratio(value: float | None, decimals: int = 2) -> str:
    return "" if value is None else f"{value:.{decimals}f}x"


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


def store(data: Results) -> list[Table]:
    """What a store saves."""
    first, editing, shuffled = (data["results"][name] for name in ("time_to_first_token", "editing", "shuffled"))
    warm, questions = first["warm"], shuffled["questions"]
    rows = [
        [f"first token over {first['tokens']:,} stored tokens", _seconds(warm["ours_seconds"])],
        ["the same, files from the disk and checked first", _seconds(first["cold_seconds"])],
        [
            "the untouched model reads these tokens again",
            f"{_seconds(warm['baseline_seconds'])}, {warm['speed']:.0f} and {first['cold_speed']:.0f} times as long",
        ],
        [f"computing {editing['units']:,} units", _seconds(editing["rebuild_seconds"])],
        [
            "replacing one of them",
            f"{_seconds(editing['edit_seconds'])}, {editing['edit_to_rebuild']:.2%} of that",
        ],
        [f"a question over 64 of {shuffled['units']:,} units, early", _seconds(shuffled["early_seconds"])],
        [f"the same, after {questions:,} questions", _seconds(shuffled["late_seconds"])],
    ]
    return [plain(["", "time"], rows)]


def store_growth(data: Results) -> list[Table]:
    """The first token by how much is stored."""
    rows = [
        [
            f"{int(count):,}",
            f"{found['bytes'] / 2**20:,.0f} MiB",
            _seconds(found["seconds"]),
            f"{found['nanoseconds_per_byte']:.2f} ns",
        ]
        for count, found in data["results"]["first_token"].items()
    ]
    return [plain(["stored tokens", "bytes read", "first token", "for a byte"], rows)]


def store_decoding(data: Results) -> list[Table]:
    """A token behind a set, by the layers of its cache and by those of transformers."""
    found = data["results"]["decoding"]
    rows = [
        ["with room behind the columns", f"{found['ours_tokens_per_second']:.1f}", ratio(found["ratio"])],
        ["copied with every token, as in transformers", f"{found['baseline_tokens_per_second']:.1f}", ""],
    ]
    return [plain([f"behind {found['tokens']:,} tokens", "tokens per second", "time"], rows)]


def store_precision(data: Results) -> list[Table]:
    """What 8 bits lose, by book, and what they save."""
    head = ["", "perplexity, full", "8 bits", "largest difference of logits", "mean", "same likeliest token"]
    rows = [
        [
            f"{name.replace('_', ', ').replace('-', ' ')}, {found['tokens']:,} stored tokens",
            *(f"{found['perplexity'][side]:.3f}" for side in ("model", "int8")),
            f"{found['largest_difference']:.2f}",
            f"{found['mean_difference']:.3f}",
            f"{found['likeliest_agree']:.1%}",
        ]
        for name, found in data["results"]["books"].items()
    ]
    return [plain(head, rows)]


def store_precision_costs(data: Results) -> list[Table]:
    sizes, first = data["results"]["bytes_per_token"], data["results"]["first_token"]
    rows = [
        ["the model's own", f"{sizes['model'] / 1024:.1f} KiB", _seconds(first["baseline_seconds"])],
        ["8 bits", f"{sizes['int8'] / 1024:.1f} KiB", _seconds(first["ours_seconds"])],
    ]
    return [plain(["numbers", "for a token", "first token"], rows)]


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"
