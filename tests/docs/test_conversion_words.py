"""What the documents say in words about conversions is what the result files say."""

from __future__ import annotations

from statistics import fmean

from benchmarks.readme import ROOT
from tests.docs.reading import results_of, words_of

RESCALED = ("pi:factor=16", "ntk:factor=16", "yarn:factor=16")


def conversions(file: str) -> dict[str, list[list[float]]]:
    """By conversion and seed, its perplexities from the training length on."""
    variants = results_of(file)["variants"]
    return {
        name: [list(run["perplexity"].values()) for run in found["runs"].values()] for name, found in variants.items()
    }


def against_original(by_seed: dict[str, list[list[float]]], variant: str) -> float:
    """Percent that the longest windows are above the original's at the training length."""
    both = zip(by_seed[variant], by_seed["untouched"], strict=True)
    return 100 * fmean(own[-1] / original[0] - 1 for own, original in both)


def below_ntk(by_seed: dict[str, list[list[float]]], variant: str, times: int) -> float:
    ours, ntk = (fmean(run[times.bit_length() - 1] for run in by_seed[v]) for v in (variant, "ntk:factor=16"))
    return 100 * (1 - ours / ntk)


def test_a_small_anchored_conversion_reads_on_as_the_documents_say() -> None:
    """At 16 times the length no worse than the original at its own, and below every rescaling from twice it on."""
    by_seed = conversions("retrofit-shakespeare")
    anchored = by_seed["content:anchors=[1]"]
    assert len(anchored) == 3
    for seed, ours in enumerate(anchored):
        for name in RESCALED:
            assert all(a < b for a, b in zip(ours[1:], by_seed[name][seed][1:], strict=True))
    text = (ROOT / "docs" / "huggingface.md").read_text()
    assert f"{-against_original(by_seed, 'content:anchors=[1]'):.1f}% *better* than the original" in text
    assert f"{against_original(by_seed, 'content'):.1f}% above the original at 16 times" in text
    assert f"against NTK at twice the length by {below_ntk(by_seed, 'content:anchors=[1]', 2):.1f}%" in text


def test_the_words_about_conversions_at_paper_size_are_true() -> None:
    by_seed = conversions("retrofit-paper")
    means = {name: [fmean(column) for column in zip(*runs, strict=True)] for name, runs in by_seed.items()}
    anchored = [name for name in means if "anchors" in name and "nothing" not in name]
    reset = ["content", "content:positions=gated", "content:train=lora"]
    assert len(anchored) == len(reset) == len(by_seed["content"]) == 3
    for name in anchored:
        assert all(a < b for other in RESCALED for a, b in zip(means[name][1:], means[other][1:], strict=True))
        ahead = [run[1] < ntk[1] for run, ntk in zip(by_seed[name], by_seed["ntk:factor=16"], strict=True)]
        assert ahead.count(False) == 1
        assert 0 < below_ntk(by_seed, name, 2) < 0.1
        assert f"{below_ntk(by_seed, name, 4):.1f}" == "0.3"
    text, readme = map(words_of, ("docs/huggingface.md", "README.md"))
    lowest, highest = (f"{f(x for name in reset for x in means[name]):.2f}" for f in (min, max))
    assert f"({lowest} to {highest})" in text
    above = sorted(against_original(by_seed, name) for name in reset)
    assert f"at 16 times {above[0]:.1f}% to {above[-1]:.1f}% above" in text
    below = sorted(-against_original(by_seed, name) for name in anchored)
    assert f"at 16 times {below[0]:.1f}% to {below[-1]:.1f}% *below* the original" in text
    assert f"alone end {against_original(by_seed, 'content:train=addresses'):.1f}% above" in text
    assert f"reads on at {against_original(by_seed, 'content:start=back,train=nothing'):.0f}% above" in text
    assert f"({means['untouched'][0]:.2f} at its own length; trained on" in text
    assert f"gets to {means['rope'][0]:.2f})" in text
    assert f"{against_original(by_seed, 'content'):.1f}% above the original at its own length" in readme
    assert f"{below[-1]:.1f}% *below* it" in readme
