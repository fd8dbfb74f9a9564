"""The documents' tables are those of the result files; a stale number is found."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from experiments import docs_tables
from experiments.docs_tables import (
    ROOT,
    SECTIONS,
    Figure,
    documents,
    fill,
    filled,
    section,
    stale_documents,
    stale_figures,
)
from experiments.results import ResultError


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the results, one document, its table filled, and one figure."""
    monkeypatch.setattr(docs_tables, "FIGURES", {"shakespeare-paper": Figure("shakespeare-paper", "curve")})
    shutil.copytree(ROOT / "results", tmp_path / "results")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(filled("before\n<!-- paper -->\n<!-- /paper -->\nafter\n"))
    return tmp_path


def test_documents_show_what_the_result_files_say() -> None:
    assert stale_documents() == [], "run python -m experiments.docs_tables"


def test_every_section_stands_somewhere() -> None:
    texts = [document.read_text() for document in documents()]
    assert all(any(f"<!-- {name} -->" in text for text in texts) for name in SECTIONS)


def test_a_planted_number_is_found_and_mended(copy: Path) -> None:
    document = copy / "README.md"
    fresh = document.read_text()
    assert stale_documents(copy) == []
    stale, planted = re.subn(r"\| 4\.\d\d ± ", "| 9.99 ± ", fresh, count=1)
    assert planted == 1
    document.write_text(stale)
    assert stale_documents(copy) == [document]
    assert document in fill(copy)
    assert document.read_text() == fresh
    assert fresh.startswith("before\n")
    assert fresh.endswith("\nafter\n")


def test_a_newer_result_makes_a_document_and_a_figure_stale(copy: Path) -> None:
    fill(copy)
    assert (stale_documents(copy), stale_figures(copy)) == ([], [])
    result = copy / "results" / "shakespeare-paper.json"
    changed = re.sub(r'"256": \d', '"256": 7', result.read_text())
    assert changed != result.read_text()
    result.write_text(changed)
    assert stale_documents(copy) == [copy / "README.md"]
    assert stale_figures(copy) == [result.with_suffix(".svg")]
    fill(copy)
    assert (stale_documents(copy), stale_figures(copy)) == ([], [])
    assert "| 7." in (copy / "README.md").read_text()


@pytest.mark.parametrize(
    "text", ["<!-- paper -->", "<!-- /paper --><!-- paper -->", "<!-- paper -->" * 2, "<!-- /paper -->"]
)
def test_a_section_that_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(ResultError, match="<!-- paper -->"):
        filled(text)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_one_or_more_whole_tables(name: str) -> None:
    for block in section(name).split("\n\n"):
        widths = {line.replace("\\|", "").count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(widths) == (0 if block.endswith(":") else 1)


def test_figures_are_drawn_from_the_newest_results() -> None:
    assert stale_figures() == [], "run python -m experiments.docs_tables"
