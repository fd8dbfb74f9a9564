"""What the tokens of an answer read: a look inside the calls that made them.

A token is drawn from the logits of the last query, so what that query attended to is what the token read: units of the
set, and all that is no unit, which is the messages and the answer so far.

Shapes: groups are the units of the set in its order, and behind them one or more for the rest.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from contentrope.hf.inspection import looking
from contentrope.store import SetCache

MOST_DETAILED = 32
"""Units whose shares are sent by layer and head: those that some head read most."""
DIGITS = 6

Shares = Float[Tensor, "layers heads groups"]


class Traced(NamedTuple):
    """A token, the characters it made, and what it read."""

    start: int
    """Its first character in the answer. Tokens that make a character together have one start and one text."""
    text: str
    shares: Shares

    def described(self, units: int) -> dict[str, Any]:
        """As clients see it; ``units``: how many there are."""
        by_group, strongest = self.shares.double().mean((0, 1)), self.shares[:, :, :units].amax((0, 1))
        return {
            "start": self.start,
            "text": self.text,
            "units": [_rounded(share) for share in by_group[:units].tolist()],
            "strongest": [_rounded(share) for share in strongest.tolist()],
            "rest": _rounded(float(by_group[units:].sum())),
            "detail": _detail(self.shares, strongest),
        }


class Look(NamedTuple):
    """Some tokens; the keys of the units are those of the whole answer, in the order of the shares."""

    units: tuple[str, ...]
    tokens: list[Traced]

    def described(self, *, units: bool) -> dict[str, Any]:
        tokens = {"tokens": [token.described(len(self.units)) for token in self.tokens]}
        return {"units": list(self.units), **tokens} if units else tokens


class Sight:
    """Into the calls of a batch, by the units of its documents."""

    def __init__(self, model: Any, cache: SetCache) -> None:
        self.model, spans = model, cache.spans
        self.units = tuple(spans)
        # Of an empty set the first column is numbered, since some must be; it counts as the rest all the same.
        lengths = [end - begin for begin, end in spans.values()] or [1]
        self._groups = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        self.shares: Float[Tensor, "rows layers heads groups"] | None = None
        """Of the last call."""

    @contextmanager
    def of_next_call(self) -> Iterator[None]:
        with looking(self.model, self._groups[None], last=1) as calls:
            yield
        layers = [layer[:, :, -1].cpu() for layer in calls[-1]]
        heads = max(layer.shape[1] for layer in layers)
        self.shares = torch.stack([F.pad(layer, (0, 0, 0, heads - layer.shape[1])) for layer in layers], dim=1)


class Traces:
    """Of one answer: which of its characters each token made. What is told of a token is told once all are written."""

    def __init__(self, units: Sequence[str]) -> None:
        self.units = tuple(units)
        self._text, self._made = "", 0
        self._silent: list[Shares] = []
        """Of tokens that made no character so far."""
        self._waiting: list[tuple[int, int, Shares]] = []

    def after(self, shares: Shares | None, made: int, text: str, *, is_last: bool) -> Look:
        """Take a token (None: the end of the answer, which makes no text). ``made``: characters that tokens made so
        far; ``text``: what is written of them now."""
        if shares is not None:
            self._silent.append(shares)
        if made > self._made:
            self._waiting += [(self._made, made, silent) for silent in self._silent]
            self._made, self._silent = made, []
        self._text += text
        written = len(self._text)
        # Behind a stop word nothing is written, and of the token that it cuts only a part.
        ready = [one for one in self._waiting if one[1] <= written or (is_last and one[0] < written)]
        self._waiting = self._waiting[len(ready) :]
        return Look(self.units, [Traced(begin, self._text[begin:end], found) for begin, end, found in ready])


def _detail(shares: Shares, strongest: Float[Tensor, "units"]) -> dict[str, Any]:
    """Layer by layer and head by head, for the units that some head read most."""
    most = strongest.topk(min(MOST_DETAILED, len(strongest))).indices.sort().values
    found = shares[:, :, most].half().contiguous()
    data = base64.b64encode(found.numpy().astype("<f2").tobytes()).decode()
    return {"units": most.tolist(), "shape": list(found.shape), "dtype": "float16", "data": data}


def _rounded(share: float) -> float:
    return float(f"{share:.{DIGITS}g}")
