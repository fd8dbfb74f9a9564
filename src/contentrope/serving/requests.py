"""A request on its way through the engine, and what is heard of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from contentrope.serving.looking import Look
from contentrope.serving.refusals import Refused
from contentrope.serving.sampling import Sampling

Selection = Literal["all"] | tuple[str, ...]
"""Ids of documents, or all there are when the answer begins."""


class Usage(NamedTuple):
    """Tokens; those of the documents are among those of the prompt."""

    documents: int
    prompt: int
    completion: int


class Event(NamedTuple):
    """Some text; with the last event of a request why it ended."""

    text: str = ""
    finish: Literal["stop", "length"] | None = None
    usage: Usage | None = None
    error: Refused | None = None
    look: Look | None = None
    """What the tokens of the text read, if that was asked for."""

    @property
    def is_last(self) -> bool:
        return self.finish is not None or self.error is not None


@dataclass(eq=False, kw_only=True)
class Request:
    prompt: list[int]
    documents: Selection = "all"
    sampling: Sampling = field(default_factory=Sampling)
    new_tokens: int
    stop: tuple[str, ...] = ()
    look: bool = False
    """Whether to say what every token reads."""
    hear: Callable[[Event], None]
    """Called from the engine's thread."""
    since: float = field(default_factory=time.monotonic)
    ended: bool = False
    """Nobody listens any more, or there is nothing more to hear."""

    def tell(self, event: Event) -> None:
        """To whom asked; an event loop that is gone hears nothing."""
        try:
            self.hear(event)
        except RuntimeError:
            self.ended = True
