"""The documents show the newest numbers, and their examples run."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.readme import ROOT, with_tables

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_readme_shows_what_the_result_files_say() -> None:
    text = (ROOT / "README.md").read_text()
    assert with_tables(text) == text, "run python -m benchmarks.readme"


def test_readme_shows_the_long_evaluation() -> None:
    results = json.loads((ROOT / "results" / "evaluation-65536.json").read_text())["results"]
    shown = f"took {results['seconds']:.0f} s and {results['added_peak_bytes'] / 1e6:.0f} MB"
    assert shown in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL):
        exec(compile(example, document.name, "exec"), names)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#][^)]*)\)", document.read_text()):
        assert (document.parent / target).exists(), target
