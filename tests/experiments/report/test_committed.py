"""Every committed result opens and makes a whole report, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from experiments.docs_tables import ROOT
from experiments.report import write_report
from experiments.results import EXPERIMENTS, read, variants
from tests.experiments.report.page import Page

COMMITTED = [
    path for path in sorted((ROOT / "results").rglob("*.json")) if "experiment" in json.loads(path.read_text())
]


LIKE_EACH_OTHER = "facts-choices"
"""A folder of results of one kind: one of them stands for all."""
SHOWN = [path for path in COMMITTED if path.parent.name != LIKE_EACH_OTHER]
SHOWN += [path for path in COMMITTED if path.parent.name == LIKE_EACH_OTHER][:1]


def test_there_are_results_of_all_experiments() -> None:
    assert {read(path)["experiment"] for path in COMMITTED} == set(EXPERIMENTS)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.stem)
def test_a_committed_result_makes_a_whole_report(path: Path, tmp_path: Path) -> None:
    written = write_report(path, tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    markdown = (tmp_path / "report.md").read_text()
    figures = [file for file in written if file.suffix == ".svg"]
    assert page.tags.count("svg") == len(figures) >= 1
    for figure in figures:
        ElementTree.parse(figure)
        assert f"({figure.name})" in markdown
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert "http" not in (tmp_path / "report.html").read_text()
    for name in variants(read(path)):
        assert name in page.words
        assert name.replace("[", "\\[") in markdown


def test_reports_need_no_torch(tmp_path: Path) -> None:
    result = ROOT / "results" / "timing-paper.json"
    program = f"""
import sys
from experiments.report import main
main([{str(result)!r}, "--out", {str(tmp_path)!r}])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
    assert (tmp_path / "report.html").exists()
