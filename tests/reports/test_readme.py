"""README's tables and picture of the context-growth experiment come from its result files."""

import shutil
from pathlib import Path

import matplotlib
import pytest

from benchmarks import readme
from contentrope.reports import draw_picture, read_results
from contentrope.reports.growth.tables import length_table
from contentrope.results import write_json
from tests.reports.growth.made_up import made_results

GROWTH = ("quick", "paper")


def test_a_marked_section_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(readme.ROOT / "results", tmp_path / "results")
    for name in GROWTH:
        write_json(tmp_path / "results" / readme.SECTIONS[name][0], made_results())
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    text = "".join(f"<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in readme.SECTIONS)
    filled = readme.with_tables(text)
    for name in GROWTH:
        assert f"<!-- {name} -->\n{length_table(made_results()).markdown()}\n<!-- /{name} -->" in filled
    assert "old" not in filled
    assert readme.with_tables(filled) == filled


@pytest.mark.parametrize("name", readme.PICTURES)
def test_the_picture_is_drawn_from_the_newest_results(name: str, tmp_path: Path) -> None:
    pinned = f"matplotlib=={matplotlib.__version__}"
    if pinned not in (readme.ROOT / "requirements.lock").read_text():
        pytest.skip(f"{pinned} may draw otherwise than the version the picture was made with")
    draw_picture(read_results(readme.ROOT / "results" / f"{name}.json"), tmp_path / "picture.svg")
    stored = readme.ROOT / "results" / f"{name}.svg"
    assert stored.read_bytes() == (tmp_path / "picture.svg").read_bytes(), "run python -m benchmarks.readme"


def test_the_front_picture_is_drawn_from_the_newest_results(tmp_path: Path) -> None:
    readme.draw_front(tmp_path / "picture.svg")
    assert (readme.ROOT / "results" / "readme.svg").read_bytes() == (tmp_path / "picture.svg").read_bytes()
