"""A reader of HTML pages that is strict about tags."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "wbr"}


class Page(HTMLParser):
    """Reads a page and fails on a tag that is closed in the wrong place, or an id that is there twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        name = dict(attrs).get("id")
        assert name is None or name not in self.ids, name
        self.ids |= {name} if name else set()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += data
