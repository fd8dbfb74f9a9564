"""From tokens to text as they come, and to where a caller's stop words end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_BYTES = 4
"""Of a character in UTF-8: a tokenizer of bytes may need as many tokens for it."""
BROKEN = "\N{REPLACEMENT CHARACTER}"


class Writing:
    """The text of an answer. What may still change, an unfinished character or the beginning of a stop word, is held.

    >>> writing = Writing(lambda ids: "".join(map(chr, ids)), ("end",))
    >>> [writing.add(ord(letter)) for letter in "then end"], writing.stopped
    (['t', 'h', '', '', 'en ', '', '', ''], True)
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self._ids: list[int] = []
        # Tokens from ``begin`` to ``read`` are written; a token may look otherwise behind another.
        self._begin = self._read = 0
        self._held = ""
        self.made = 0
        """Characters the tokens made so far, what is held and what a stop word cut off among them."""
        self.stopped = False
        """Whether a stop word has ended it."""

    def add(self, token: int) -> str:
        """What is certain since the last token."""
        self._ids.append(token)
        text = self._new_text()
        if text.endswith(BROKEN) and len(self._ids) - self._read < MOST_BYTES:
            return ""
        self._begin, self._read = self._read, len(self._ids)
        return self._released(text)

    def rest(self) -> str:
        """What was held, when no token comes any more."""
        found = "" if self.stopped else self._released(self._new_text()) + self._held
        self._begin, self._read, self._held = self._read, len(self._ids), ""
        return found

    def _new_text(self) -> str:
        known = self._decode(self._ids[self._begin : self._read]) if self._read else ""
        return self._decode(self._ids[self._begin :])[len(known) :]

    def _released(self, text: str) -> str:
        self.made += len(text)
        text = self._held + text
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text may become a stop word."""
    longest = min(len(text), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
