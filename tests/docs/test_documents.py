"""The documents show the newest tables, and their examples, options and links are right."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.readme import DOCUMENTS, ROOT, SECTIONS, with_tables
from tests.docs.reading import results_of


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
    """Fields of the commands' dataclasses, with those of training, and what other parsers are given."""
    files = [
        path for folder in ("src/contentrope/cli", "benchmarks", "tests/fuzz") for path in (ROOT / folder).rglob("*.py")
    ]
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
