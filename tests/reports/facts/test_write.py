"""The files of a report: what they say, whole and partial, and that the page needs nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest

from contentrope.reports import read_results, write_report
from contentrope.reports.__main__ import main
from contentrope.results import write_json
from tests.reports.facts.made_up import HITS, made_inside, made_results, with_details
from tests.reports.reading import Page

FEW = {name: HITS[name] for name in ("content", "content:competition=1", "rope")}
PICTURES = ("hits", "scaling", "losses", "inside", "addresses")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("report")
    write_json(found / "results.json", with_details(made_results(FEW)))
    write_report(read_results(found / "results.json"), found)
    return found


def text_of(results: dict[str, Any], folder: Path) -> str:
    write_report(results, folder)
    return (folder / "report.md").read_text()


def test_all_files_are_written_and_nothing_else(folder: Path) -> None:
    drawn = [f"{name}.{kind}" for name in PICTURES for kind in ("svg", "png")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["results.json", "report.md", "report.html", *drawn]
    )


def test_the_command_makes_the_same_report(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder / "results.json"), "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "hits.svg") in capsys.readouterr().out
    for name in ("report.md", "report.html", "hits.svg", "inside.svg", "addresses.svg", "losses.png"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_what_was_run_is_said(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    for words in (
        "# Retrieval from facts",
        "Preset paper. Trained on examples of one fact: 100,000 steps, 32 examples a step, learning rate 0.0005, ",
        "learning rate 0.0005, schedule constant, weight decay 0.01, precision tf32, seeds 0, 1, 2. Model",
        "Model: width 60, layers 3, heads 1, 121,561 parameters.",
        "Asked: 1,000 examples a row, 4 distractors beside the fact asked for, or none, and 4, 16, 64, 256 of them",
        "Facts: 134,935 facts, 3,000 names, 100 unseen names, 6,116,520 sentences, layout end, seed 0.",
        "Made with: NVIDIA H200, contentrope 0.1.0",
        "![Hit@5 by condition, kind and names",
        "3 (asked): &lt;son> adam &lt;father> brian;",
        "The addresses content gives to 360 facts",
        "contentrope reproduce facts --preset paper --variants content content:competition=1 rope --seeds 3 --out",
        "python -m contentrope.reports runs/facts-paper/results.json",
    ):
        assert words in text
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert headings == [
        "Hit@5 by row", "Perplexity by row", "What the numbers say", "Other exponents", "More distractors",
        "The order of the facts", "A look inside", "Training", "Repeat it",
    ]  # fmt: skip
    assert "Unfinished" not in text


def test_the_page_is_whole_and_needs_nothing_else(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("svg") == len(PICTURES)
    assert not {"script", "link", "img", "image", "iframe", "object"} & set(tags)
    assert "http:" not in text
    assert "https:" not in text
    for _, attributes in page.tags:
        assert (attributes.get("xlink:href") or "#").startswith("#")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"url(#{name})" for name in ids} >= set(re.findall(r"url\(.*?\)", text))


def test_markdown_and_page_say_the_same(folder: Path) -> None:
    page = Page((folder / "report.html").read_text())
    for line in (folder / "report.md").read_text().splitlines():
        plain = re.sub(r"^(#+|-) |!\[.*\]\(.*\)|```\w*|\*+|^\| ?| ?\|$|---", "", line)
        plain = plain.replace("&amp;", "&").replace("&lt;", "<")
        for part in filter(None, map(str.strip, plain.split(" | "))):
            assert part in page.text


# --- partial results -----------------------------------------------------------------------------------------------


def test_before_the_first_run_there_is_a_report(tmp_path: Path) -> None:
    results = made_results({})
    results["config"]["variants"] = ["content", "rope"]
    assert [path.name for path in write_report(results, tmp_path)] == ["report.md", "report.html"]
    text = (tmp_path / "report.md").read_text()
    assert "Unfinished: 0 of 6 runs are in." in text
    assert "## Repeat it" in text
    assert "## Hit@5" not in text


def test_missing_variants_and_seeds_are_told(tmp_path: Path) -> None:
    results = made_results({"content": HITS["content"]})
    results["config"]["variants"].append("rope")
    del results["variants"]["content"]["runs"]["1"]
    text = text_of(results, tmp_path)
    assert "Unfinished: 2 of 6 runs are in." in text
    assert "## A look inside" not in text
    assert "## More distractors" not in text
    assert "## The order" not in text
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["hits.svg"]


def test_one_seed_and_null_perplexity(tmp_path: Path) -> None:
    results = made_results(FEW, seeds=1)
    for score in results["variants"]["rope"]["runs"]["0"]["rows"].values():
        score["perplexity"] = None
    text = text_of(results, tmp_path)
    assert "inf: not a finite number" in text
    assert "±" not in text


def test_runs_without_rows_have_a_report(tmp_path: Path) -> None:
    text = text_of(made_results({"content": (None,) * 12}), tmp_path)
    assert "## Training" in text
    assert "| facts, kind, names |" not in text


def test_unknown_settings_are_left_out(tmp_path: Path) -> None:
    results = made_results({"rope": HITS["rope"]}, seeds=1)
    results |= {"config": {"variants": ["rope"], "seeds": 1}, "corpus": {}, "environment": None}
    results["variants"]["rope"]["runs"]["0"] |= {"environment": None, "model": None}
    text = text_of(results, tmp_path)
    assert "Trained on examples of facts: seed 0." in text
    assert "Facts: unknown." in text


def test_without_matplotlib_there_is_a_report_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    written = write_report(with_details(made_results(FEW)), tmp_path)
    assert [path.name for path in written] == ["report.md", "report.html"]
    text = (tmp_path / "report.md").read_text()
    assert "pip install contentrope[report]" in text.replace("\\", "")
    assert ".svg" not in text


def test_a_hostile_name_is_only_a_name(tmp_path: Path) -> None:
    hostile = '<script>alert("x")</script>|$\\frac{$*`:a=<b>,_c=é'
    results = with_details(made_results({hostile: HITS["content"], "": HITS["rope"]}, seeds=1))
    inside = made_inside()
    inside["unit_texts"][0] = inside["tokens"][inside["scored"][0]] = "$\\frac{$<script>"
    run = results["variants"][hostile]["runs"]["0"]
    run["inside"] = inside
    run["addresses"]["relations"] = ["$\\frac{$<script>"] * len(run["addresses"]["points"])
    write_report(results, tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert hostile in page.text
    assert "script" not in [tag for tag, _ in page.tags]
    outside_code = re.sub(r"```bash\n.*?\n```\n", "", (tmp_path / "report.md").read_text(), flags=re.DOTALL)
    assert "<script" not in outside_code


def test_the_command_line_prints_both_tables_and_how_to_read_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from contentrope.cli import main as command

    results = made_results(FEW)
    del results["variants"]["rope"]["runs"]["2"]
    write_json(tmp_path / "results.json", results)
    assert command(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Hit@5 by row; higher is better" in printed
    assert "Perplexity of the scored characters by row; lower is better" in printed
    assert "single fact, chain2, train" in printed
    assert "Trained on one fact an example." in printed
    assert "Not finished yet: rope, seed 2." in printed
