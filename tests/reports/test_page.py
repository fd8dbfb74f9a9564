"""The HTML page: whole, self-contained, and safe whatever a variant is called."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from contentrope.reports import write_report
from tests.reports.growth.made_up import CURVES, made_results, with_details
from tests.reports.reading import Page

HOSTILE = '<script>alert("x")</script>|$\\frac{$*`:a=<b>,_c=é'


def test_the_reader_of_pages_sees_a_wrong_tag() -> None:
    with pytest.raises(AssertionError):
        Page("<p><b>x</p></b>")
    with pytest.raises(AssertionError):
        Page("<p>x")


def test_markdown_and_page_say_the_same(tmp_path: Path) -> None:
    write_report(with_details(made_results()), tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    for line in (tmp_path / "report.md").read_text().splitlines():
        plain = re.sub(r"^(#+|-) |!\[.*\]\(.*\)|```\w*|\*+|^\| ?| ?\|$|---", "", line).replace("&amp;", "&")
        for part in filter(None, map(str.strip, plain.split(" | "))):
            assert part in page.text


def test_the_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    write_report(with_details(made_results()), tmp_path)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("svg") == 2
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert "http:" not in text
    assert "https:" not in text
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("xlink:href") or "#").startswith("#")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a["xlink:href"] for _, a in page.tags if "xlink:href" in a} <= {f"#{name}" for name in ids}
    assert {f"url(#{name})" for name in ids} >= set(re.findall(r"url\(.*?\)", text))
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text


def test_a_hostile_name_is_only_a_name(tmp_path: Path) -> None:
    results = with_details(made_results({HOSTILE: CURVES["content"], "_hidden": CURVES["rope"], "": CURVES["alibi"]}))
    results["corpus"]["name"] = results["preset"] = "<script>\n```"
    write_report(results, tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert HOSTILE in page.text
    assert "script" not in [tag for tag, _ in page.tags]
    markdown = (tmp_path / "report.md").read_text()
    outside_code = re.sub(r"```bash\n.*?\n```\n", "", markdown, flags=re.DOTALL)
    assert "<script" not in outside_code
    assert "\n```" not in outside_code
    ElementTree.parse(tmp_path / "curve.svg")
