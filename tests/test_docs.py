"""The documents show the newest numbers, and their examples run."""

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.readme import DOCUMENTS, ROOT, SECTIONS, with_tables
from contentrope.experiments.facts.presets import SHARP
from contentrope.reports.facts.paper import TABLE
from contentrope.reports.facts.rows import KINDS, ROWS
from contentrope.reports.timing import paper as timing

CHOICES = ROOT / "results" / "facts-choices"


def results_of(name: str) -> dict[str, Any]:
    """A result file, by its name without the ending."""
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return found


def words_of(document: str) -> str:
    """A document without its line breaks."""
    return " ".join((ROOT / document).read_text().split())


def as_share(hits: float) -> str:
    return f"{hits:.3f}".removeprefix("0")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_what_the_result_files_say(document: Path) -> None:
    text = document.read_text()
    assert with_tables(text) == text, "run python -m benchmarks.readme"


def test_every_section_stands_in_one_document() -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert {name: sum(text.count(f"<!-- {name} -->") for text in texts) for name in SECTIONS} == dict.fromkeys(
        SECTIONS, 1
    )


def test_readme_shows_the_long_evaluation() -> None:
    results = results_of("evaluation-65536")["results"]
    shown = f"took {results['seconds']:.0f} s and {results['added_peak_bytes'] / 1e6:.0f} MB"
    assert shown in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL):
        exec(compile(example, document.name, "exec"), names)


OF_OTHERS = {
    "cpu",
    "fsdp_version",
    "local-dir",
    "multi_gpu",
    "nproc-per-node",
    "nproc_per_node",
    "num_processes",
    "use_fsdp",
    "tool",
}
"""Options of accelerate, torchrun, hf and compute-sanitizer."""


def own_options() -> set[str]:
    """Fields of the commands' dataclasses, with those of training, and what benchmarks add to their parsers."""
    files = [path for folder in ("src/contentrope/cli", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(path.read_text() for path in (*files, ROOT / "src/contentrope/training/config.py"))
    fields = {name.replace("_", "-") for name in re.findall(r"^    (\w+):", source, re.MULTILINE)}
    return fields | set(re.findall(r'"--([a-z-]+)"', source))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_options_are_those_of_the_commands(document: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--([a-z][\w-]+)", document.read_text()))
    assert named - own_options() - OF_OTHERS == set()


def test_a_setting_that_is_no_option_is_not_taken_for_one() -> None:
    assert {"ramp", "answers-after", "preset", "backend"} <= own_options()
    assert "gate-share" not in own_options()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#][^)]*)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_tables_of_context_growth_show_the_newest_results() -> None:
    """Rows that are about one variant of the preset beyond, written by hand beside the words about them."""
    results = results_of("shakespeare-beyond")["variants"]
    text = (ROOT / "docs" / "context-growth.md").read_text()
    learned = "competition=1,learn_competition=true"
    ablation = {
        "anchors and noise": f"content:{learned},noise=0.5,anchors=[0,0,1,1]",
        "anchors": f"content:{learned},anchors=[0,0,1,1]",
        "noise": f"content:{learned},noise=0.5",
        "random address, anchors": f"random:{learned},anchors=[0,0,1,1]",
        "random address": f"random:{learned}",
        "random address, no exponent": "random",
    }
    for words, variant in ablation.items():
        runs = results[variant]["runs"]
        values = [fmean(run["perplexity"][n] for run in runs.values()) for n in ("256", "4096", "16384")]
        row = " | ".join(f"{value:.3f}" for value in (*values, runs["0"]["perplexity"]["65536"]))
        assert f"| {words} | {row} |" in text
    distant = {"content, anchors and noise": ablation["anchors and noise"], "CoPE": "cope", "ALiBi": "alibi"}
    for words, variant in distant.items():
        found = [run["distant"]["perplexity"] for run in results[variant]["runs"].values()]
        means = [fmean(run[change] for run in found) for change in ("as written", "shuffled", "deleted", "replaced")]
        assert f"| {words} | {' | '.join(f'{mean:.2f}' for mean in means)} |" in text


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
    assert f"its own work is {busy} times the untouched model's at either size" in text
    row = found("hf-decode-cuda")
    assert f"the GPU's own work is {row['busy_ratio']:.2f} times the untouched model's" in text
    ours, theirs = (f"{row[f'{side}_tokens_per_second']:.0f}" for side in ("ours", "baseline"))
    assert f"| {ours} | {theirs} | {row['speed']:.2f} |" in text
    small, large = (found(f"hf-decode{size}-cpu")["speed"] for size in ("", "-100m"))
    assert f"decodes at {small:.2f} of the untouched one's speed, one of 98 million at {large:.2f}" in text
    assert f"needs a mask, at {found('hf-decode-competition-cpu')['speed']:.2f}" in " ".join(text.split())
    plain, competing = (found("decode-cuda")[f"content{words}, 85m, 4096"] for words in ("", ", competition 1"))
    readme = words_of("README.md")
    assert f"takes {plain['ratio']:.3f}x after 4,096 cached tokens" in readme
    assert f"with an exponent {competing['ratio']:.3f}x. Of that" in readme
    assert f"work is {plain['busy_ratio']:.3f}x and {competing['busy_ratio']:.3f}x" in readme
    timed = results_of("timing-paper")["variants"]
    steps = [timed[size]["runs"]["0"]["timings"]["graphs"]["content"] for size in ("0.8M", "85M", "302M", "680M")]
    assert (
        "{:.1f}%, {:.1f}%, {:.1f}% and {:.1f}% longer".format(*(step["overhead_percent"] for step in steps)) in readme
    )
    over = {size: step["overhead_percent"] for size, step in zip(timing.TABLE, steps, strict=True)}
    reached = [size for size, aim in timing.TARGETS.items() if over[size] <= aim]
    text = words_of("docs/scaling.md")
    assert f"the targets are reached at {' and '.join(reached)}, not at 85M and 680M" in text
    assert [size for size, printed in timing.TABLE.items() if over[size] > printed.overhead] == ["680M"]
    assert "are undercut at all sizes but 680M" in text
    assert found("fused-gpu")[1]["graph_both_ratio"] > 1.2
    assert f"but for 8,192 tokens with backward ({found('fused-gpu')[1]['graph_both_ratio']:.2f}x)" in readme
    pairs = [times for row in timed.values() for run in row["runs"].values() for times in run["timings"].values()]
    most = max(pair["content"]["peak_bytes"] / pair["rope"]["peak_bytes"] for pair in pairs)
    assert f"Memory is at most {100 * (most - 1):.0f}% more." in text
    for row in found("fused-gpu"):
        more = [100 * (row[f"graph_{name}_ratio"] - 1) for name in ("forward", "both")]
        assert " | ".join(f"{x:.{int(x < 10)}f}%" for x in more) in text, row["seq"]
