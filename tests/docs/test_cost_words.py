"""What the documents say in words about costs is what the result files say."""

from __future__ import annotations

from typing import Any

from benchmarks.readme import ROOT
from contentrope.reports.timing import paper as timing
from tests.docs.reading import results_of, words_of


def test_costs_on_a_gpu_are_those_of_the_results() -> None:
    def found(file: str) -> Any:
        return results_of(f"benchmark-{file}")["results"]

    text = (ROOT / "docs" / "huggingface.md").read_text()
    trained = {
        "8 rows of 2,048 tokens, compiled": "hf-train-compiled-cuda",
        "8 rows, not compiled": "hf-train-cuda",
        "32 rows, not compiled": "hf-train-32-cuda",
    }
    for words, file in trained.items():
        row = found(file)
        ours, theirs = (f"{1e3 * row[f'{side}_seconds']:.1f} ms" for side in ("ours", "baseline"))
        assert f"{words} | {ours} | {theirs} | {row['ratio']:.2f} |" in text
    (busy,) = {f"{found(file)['busy_ratio']:.2f}" for file in ("hf-train-cuda", "hf-train-32-cuda")}
    assert f"its own work is {busy} times the untouched model's, with 32 rows" in text
    row = found("hf-decode-cuda")
    assert f"the GPU's own work is {row['busy_ratio']:.2f} times the untouched model's" in text
    ours, theirs = (f"{row[f'{side}_tokens_per_second']:.0f}" for side in ("ours", "baseline"))
    assert f"| {ours} | {theirs} | {row['speed']:.2f} |" in text
    assert f"falls short of its aim by {0.95 - row['speed']:.3f}" in text
    assert f"the aim is missed by {found('hf-train-cuda')['ratio'] - 1.10:.3f}" in text
    small, large = (found(f"hf-decode{size}-cpu")["speed"] for size in ("", "-100m"))
    assert f"decodes at {small:.2f} of the untouched one's speed, one of 98 million at {large:.2f}" in text
    assert f"needs a mask, at {found('hf-decode-competition-cpu')['speed']:.2f}" in " ".join(text.split())
    readme = words_of("README.md")
    assert found("decode-cuda")["content, 85m, 4096"]["ratio"] <= 1.02
    assert "aimed at was 1.02x, and it is Python" in readme
    timed = results_of("timing-paper")["variants"]
    steps = [timed[size]["runs"]["0"]["timings"]["graphs"]["content"] for size in ("0.8M", "85M", "302M", "680M")]

    def listed(name: str) -> str:
        return "{:.1f}%, {:.1f}%, {:.1f}% and {:.1f}%".format(*(step[name] for step in steps)).replace("-", "−")

    assert f"{listed('overhead_percent')} longer" in readme
    over = {size: step["overhead_percent"] for size, step in zip(timing.TABLE, steps, strict=True)}
    text = words_of("docs/scaling.md")
    missed = [size for size, aim in timing.TARGETS.items() if over[size] > aim]
    reached = f"all sizes but {' and '.join(missed)}" if missed else "all four sizes"
    assert f"the targets are reached at {reached}" in text
    assert all(over[size] < printed.overhead for size, printed in timing.TABLE.items())
    assert "are undercut at all of them" in text
    assert f"Means instead of medians give {listed('overhead_of_means_percent')}." in text
    assert min(timing.TARGETS, key=lambda size: timing.TARGETS[size] - over[size]) == "680M"
    assert "It is closest at 680M" in text
    assert f"takes {max(over.values()):.1f}% longer than RoPE's at the most" in words_of("CHANGELOG.md")
    for row in found("fused-gpu"):
        aim = {1024: 1.5, 8192: 1.2}.get(row["seq"], 1.1)
        assert max(row["graph_forward_ratio"], row["graph_both_ratio"]) <= aim, row["seq"]
    assert "reached by the kernels everywhere, forward and with backward" in readme
    pairs = [times for row in timed.values() for run in row["runs"].values() for times in run["timings"].values()]
    most = max(pair["content"]["peak_bytes"] / pair["rope"]["peak_bytes"] for pair in pairs)
    assert f"Memory is at most {100 * (most - 1):.0f}% more." in text
    for row in found("fused-gpu"):
        more = [100 * (row[f"graph_{name}_ratio"] - 1) for name in ("forward", "both")]
        assert " | ".join(f"{x:.{int(x < 10)}f}%" for x in more) in text, row["seq"]


def test_checks_on_a_gpu_that_are_spoken_of_were_in_order() -> None:
    text = words_of("docs/architecture.md")
    found = results_of("checks-gpu")["results"]
    assert not found["tests"]["failed"]
    passed = sum(counts["passed"] for counts in found["tests"]["by_file"].values())
    assert passed == found["tests"]["cases"]
    assert f"all {passed} cases pass" in text
    assert set(found["memory"]) == {"memcheck", "racecheck"}
    assert all(tool["clean"] for tool in found["memory"].values())
