"""README's sections of the context-growth experiment come from its result files, once it has markers for them."""

import shutil
from pathlib import Path

import pytest

from benchmarks import readme
from contentrope.reports.tables import length_table
from contentrope.results import write_json
from tests.reports.made_up import made_results


def test_a_marked_section_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(readme.ROOT / "results", tmp_path / "results")
    text = (readme.ROOT / "README.md").read_text()
    for name, file in readme.GROWTH_RESULTS.items():
        write_json(tmp_path / "results" / file, made_results())
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin not in text:
            text += f"{begin}\nold\n{end}\n"
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    filled = readme.with_tables(text)
    for name in readme.GROWTH_RESULTS:
        assert f"<!-- {name} -->\n{length_table(made_results()).markdown()}\n<!-- /{name} -->" in filled
    assert readme.with_tables(filled) == filled


def test_sections_without_markers_are_left_out() -> None:
    assert readme.growth_tables("no marker") == {}
    assert list(readme.growth_tables("<!-- beyond -->")) == ["beyond"]
