"""What docs/facts.md says in words is what the result files say."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from benchmarks.readme import ROOT
from contentrope.experiments.facts.presets import SHARP
from contentrope.reports.facts.paper import TABLE
from contentrope.reports.facts.rows import KINDS, ROWS
from tests.docs.reading import as_share, results_of, words_of

CHOICES = ROOT / "results" / "facts-choices"


def test_the_words_about_facts_have_the_newest_numbers() -> None:
    text = words_of("docs/facts.md")

    def hits(file: str, variant: str, *rows: str) -> list[str]:
        runs = results_of(file)["variants"][variant]["runs"].values()
        means = [fmean(run["rows"][row]["hit5"] for run in runs) for row in rows]
        return [as_share(mean) for mean in means]

    unseen = {
        name: [f"{name}, chain{n}, test" for n in (2, 3)] for name in ("single fact", "same entities", "same relation")
    }
    related = [f"same relation, chain{n}, {names}" for n in (2, 3) for names in ("train", "test")]
    paper = "facts-paper"
    seconds = [
        run["training_seconds"] for found in results_of(paper)["variants"].values() for run in found["runs"].values()
    ]
    assert f"{min(seconds):.0f} to {max(seconds):.0f} s of training for each" in text
    exponent = {name: hits(paper, "content:competition=1", *rows) for name, rows in unseen.items()}
    assert "unseen names {} and {};".format(*exponent["single fact"]) in text
    assert "unseen names ({} and {};".format(*exponent["same entities"]) in text
    assert "same relation {}, {}, {}, {} (".format(*hits(paper, "content:competition=1", *related)) in text
    assert "several: {} and {} with".format(*hits(paper, "content", *unseen["same entities"])) in text
    assert "RoPE here, {} and {},".format(*hits(paper, "rope", *unseen["same entities"])) in text
    beyond = {
        "content {} on pairs and {} on triples": f"content:{SHARP}",
        "memory units {} and {};": f"content:{SHARP},memory=true",
        "RoPE {} and {};": "rope",
        "BiPE {} and {}.": "bipe",
        "everywhere ({} and {} with four": f"random:{SHARP}",
    }
    for words, variant in beyond.items():
        assert words.format(*hits("facts-beyond", variant, *unseen["same relation"])) in text


COURSES = ("constant", "cosine")


def test_the_words_about_open_choices_have_the_newest_numbers() -> None:
    text = words_of("docs/facts.md")

    def runs(file: str) -> list[dict[str, Any]]:
        results = results_of(f"facts-choices/{file}")
        return list(results["variants"]["content"]["runs"].values())

    def printed(rows: dict[str, Any], *names: str) -> list[str]:
        return [as_share(rows[name]["hit5"]) for name in names]

    (as_pytorch,) = runs("torch-all-constant")
    seen = [f"{c}, {kind}, train" for c in ("single fact", "same entities", "same relation") for kind in KINDS]
    words = "{} and {} with a single fact, {} and {} with the same entities, {} and {} with the same relation"
    assert words.format(*printed(as_pytorch["rows"], *seen)) in text
    single = ["single fact, chain2, test", "single fact, chain3, test"]
    by_seed = [" and ".join(printed(run["rows"], *single)) for run in runs("torch-all-constant-100000")]
    assert "unseen names ({}), the others remember the names of training ({}, {})".format(*by_seed) in text
    kinds, pairs = ("small", "torch", "torch-all"), "same entities, chain2, test"
    course = {name: [printed(runs(f"{kind}-{name}")[0]["rows"], pairs)[0] for kind in kinds] for name in COURSES}
    assert (
        "pairs, {}, {} and {} against {}, {} and {} with cosine".format(*(x for y in course.values() for x in y))
        in text
    )
    (nearest,) = runs("torch-constant")
    theirs, ours = TABLE["hit5"]["content"], nearest["exponents"]["0.5"]
    below = [row for row in ROWS if round(ours[row]["hit5"], 3) < theirs[row]]
    assert f"at or above the paper in {12 - len(below)} rows (one seed)" in text
    missing = [theirs[row] - ours[row]["hit5"] for row in below if theirs[row] == 1]
    assert "missing {:.3f} and {:.3f} where".format(*missing).replace("0.", ".") in text
    assert "{} against".format(*printed(ours, "same relation, chain3, train")) in text
    assert below[len(missing) :] == ["same relation, chain3, train"]


def test_the_words_about_exponents_and_the_quick_preset_have_the_newest_numbers() -> None:
    text = words_of("docs/facts.md")
    files = {path.stem: results_of(f"facts-choices/{path.stem}") for path in CHOICES.glob("*.json")}
    best = [name for found in files.values() for name in _best_exponents(found).values()]
    assert f"0 hardly ever (in {best.count('0')} of {len(best)} cases among several facts)" in text
    small = _best_exponents(files["small-cosine"])
    assert list(small.values()).count("1") >= 7
    related = [
        best
        for name, found in files.items()
        for row, best in _best_exponents(found).items()
        if "constant" in name and row.startswith("same relation")
    ]
    assert related.count("0.5") > 2 / 3 * len(related)
    runs = results_of("facts-quick")["variants"]["content:competition=1"]["runs"]
    unseen = [row for row in ROWS if row.endswith("test")]
    means = [as_share(fmean(run["rows"][row]["hit5"] for run in runs.values())) for row in unseen]
    words = "{} and {} with a single fact, {} and {} with the same entities, {} and {} with the same relation, unseen"
    assert words.format(*means) in text
    runs = files["linear-constant-100000"]["variants"]["content"]["runs"]
    found = [fmean(run["exponents"]["0.75"][row]["hit5"] for run in runs.values()) for row in unseen]
    assert words.format(*(as_share(mean) for mean in found)) in text


def test_the_words_about_a_higher_rate_have_the_newest_numbers() -> None:
    text = words_of("docs/facts.md")
    fast = results_of("facts-choices/linear-cosine-fast-7000")
    runs = list(fast["variants"]["content"]["runs"].values())
    assert (len(runs), fast["config"]["training"]["learning_rate"]) == (3, 4e-3)

    def mean(found: list[dict[str, Any]], row: str) -> float:
        return round(fmean(rows[row]["hit5"] for rows in found), 3)

    def printed(names: str) -> list[str]:
        return [as_share(ours[row]) for row in ROWS if row.endswith(names)]

    ours = {row: mean([run["exponents"]["0.75"] for run in runs], row) for row in ROWS}
    words = "{} and {} with a single fact, {} and {} with the same entities, {} and {} with the same relation, unseen"
    assert words.format(*printed("test")) in text
    assert "names of training {} and {}, {} and {}, {} and {}.".format(*printed("train")) in text
    pairs = mean([run["rows"] for run in runs], "same entities, chain2, test")
    assert f"exponent 0 finds {pairs:.3f} of the pairs".replace("0.", ".") in text
    missing = {row: round(TABLE["hit5"]["content"][row] - ours[row], 3) for row in ROWS}
    reached, near = (
        [row for row, value in missing.items() if low < value <= high] for low, high in ((-1, 0), (0, 0.002))
    )
    assert (len(reached), len(near)) == (6, 3)
    assert "at or above the paper in 6 rows and within .002 of it in three more" in text
    assert [missing[row] for row in ROWS if row.endswith("test") and row not in reached] == [0.001]
    assert "{} and {} among facts of the same relation".format(*printed("test")[-2:]) in words_of("README.md")
    related = [row for row in ROWS if row.startswith("same relation") and row.endswith("test")]
    for path in CHOICES.glob("*-100000.json"):
        others = list(results_of(f"facts-choices/{path.stem}")["variants"]["content"]["runs"].values())
        for exponent in others[0]["exponents"]:
            assert all(mean([run["exponents"][exponent] for run in others], row) < ours[row] for row in related)
    longer = results_of("facts-choices/linear-cosine-fast-20000")["variants"]["content"]["runs"]["0"]
    both = [as_share(run["exponents"]["0.5"][row]["hit5"]) for run in (longer, runs[0]) for row in related]
    assert "(same relation under exponent 0.5: {} and {}, against {} and {})".format(*both) in text


def _best_exponents(results: dict[str, Any]) -> dict[str, str]:
    """Of 0, 0.5 and 1, by row with several facts; of equals the smaller."""
    runs = results["variants"]["content"]["runs"].values()

    def hit(exponent: str, row: str) -> float:
        found = [run["rows"] if exponent == "0" else run["exponents"][exponent] for run in runs]
        return round(fmean(rows[row]["hit5"] for rows in found), 3)

    several = [row for row in ROWS if not row.startswith("single fact")]
    return {row: max(("0", "0.5", "1"), key=lambda exponent: hit(exponent, row)) for row in several}


def test_the_words_about_many_facts_have_the_newest_numbers() -> None:
    text = words_of("docs/facts.md")
    results = results_of("facts-beyond")["variants"]

    def among(count: int, kind: str, *variants: str) -> list[str]:
        runs = [results[variant]["runs"].values() for variant in variants]
        means = [fmean(run["scaling"][str(count)][kind]["hit5"] for run in found) for found in runs]
        return [as_share(mean) for mean in means]

    content, memory = f"content:{SHARP}", f"content:{SHARP},memory=true"
    words = "content finds {} of the pairs, {} with memory units (aimed at: .90); RoPE {}, BiPE {}."
    assert words.format(*among(64, "chain2", content, memory, "rope", "bipe")) in text
    assert "With 256 it is {} and {}.".format(*among(256, "chain2", content, memory)) in text
    assert "harder: {} and {} with 64".format(*among(64, "chain3", content, memory)) in text
    assert "among 65 facts ({} of the pairs)".format(*among(64, "chain2", f"random:{SHARP}")) in text

    def orders(variant: str, what: str) -> list[float]:
        return [run["order"][what] for run in results[variant]["runs"].values()]

    changed = [100 * fmean(orders(variant, "answers_changed")) for variant in (content, "rope", memory)]
    assert f"change {changed[0]:.1f}% of content's answers, {changed[1]:.1f}% of RoPE's, and none" in text
    assert changed[2] == 0
    assert f"{max(orders(memory, 'largest_change')):.1e}".replace("e-0", "e-") + " in float32" in text
    assert f"{max(orders(memory, 'largest_change_float64')):.1e} in float64" in text
    relative = [a / b for a, b in zip(orders(memory, "largest_change"), orders(memory, "largest_logit"), strict=True)]
    assert f"{max(relative):.0e}".replace("e-0", "e-") + " of the largest logit" in text
