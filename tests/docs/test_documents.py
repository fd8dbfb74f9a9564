"""The examples, options and links of the documents are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.docs_tables import ROOT, documents

DOCUMENTS = documents()


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
        assert (document.parent / target.partition("#")[0]).exists(), target
