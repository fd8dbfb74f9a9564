"""That the order of documents does not matter, shown on the model itself, beside a reading where it does.

The set is joined anew: its documents come into an empty cache in a random order, some leave and come back. A question
behind it must have the logits that it has behind the service's own set, to the last bit. The control reads the same
documents as one running text, in these two orders.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.serving.batch import Speaker
from contentrope.serving.documents import Documents
from contentrope.serving.prefixes import Prefixes
from contentrope.serving.refusals import Refused
from contentrope.store import SetCache, UnitStore

MOST_TOKENS = 4096
"""Of documents and messages: all are read anew, twice, by the control."""
PORTIONS = 16
"""Edits in which the set comes together; more would copy it more often, and show nothing else."""


class Compared(NamedTuple):
    """``order``: ids of documents; ``difference``: the largest of the next token's logits."""

    order: list[str]
    tokens: int
    difference: float
    control: float
    seconds: float


class Shuffling:
    """Of some documents of a service, by the thread that owns the model."""

    def __init__(self, speaker: Speaker, documents: Documents, prompt: list[int], seed: int | None) -> None:
        self.speaker, self.documents, self.prompt = speaker, documents, prompt
        self.chance = random.Random(seed)

    def compare(self, keys: Sequence[str], prefixes: Prefixes) -> Compared:
        """``prefixes``: where the service's own set comes from, which stays as it is."""
        began, tokens = time.monotonic(), self._tokens(keys)
        own = prefixes.get(tuple(keys))
        order = self._another_order(keys)
        steps: tuple[Callable[[], Tensor], ...] = (
            lambda: self._behind(own.copied()),
            lambda: self._behind(joined_anew(self.documents.store, order, self.chance)),
            lambda: self._after_running_text(keys),
            lambda: self._after_running_text(order),
        )
        found = []
        for step in steps:
            found.append(step())
            self.documents.meanwhile()
        seconds = round(time.monotonic() - began, 6)
        ids = {one.key: one.id for one in self.documents.by_id.values()}
        return Compared([ids[key] for key in order], tokens, _difference(*found[:2]), _difference(*found[2:]), seconds)

    def _tokens(self, keys: Sequence[str]) -> int:
        """Of documents and messages; what cannot be compared is refused."""
        if len(keys) < 2:
            message = f"there are {len(keys)} different documents, which have one order; choose two or more"
            raise Refused(400, message, code="invalid_value", param="documents")
        lengths = {one.key: one.tokens for one in self.documents.by_id.values()}
        tokens = sum(lengths[key] for key in keys) + len(self.prompt)
        if tokens > MOST_TOKENS:
            message = f"documents and messages have {tokens} tokens, and all are read anew: at most {MOST_TOKENS}"
            raise Refused(400, message, code="context_length_exceeded", param="documents")
        return tokens

    def _another_order(self, keys: Sequence[str]) -> list[str]:
        order = list(keys)
        while order == list(keys):
            self.chance.shuffle(order)
        return order

    def _behind(self, cache: SetCache | None, before: Sequence[int] = ()) -> Float[Tensor, "1 vocab"]:
        ids = torch.tensor([[*before, *self.prompt]])
        ids = ids.to(self.speaker.model.get_input_embeddings().weight.device)
        stored = 0 if cache is None else cache.tokens
        mask = torch.ones(1, stored + ids.shape[1], dtype=torch.int64, device=ids.device)
        return self.speaker.logits(ids, mask, cache)

    def _after_running_text(self, keys: Sequence[str]) -> Float[Tensor, "1 vocab"]:
        return self._behind(None, [token for key in keys for token in self.documents.store.ids(key)])


def joined_anew(store: UnitStore, order: Sequence[str], chance: random.Random) -> SetCache:
    """A set that came together by edits: portions are inserted, and after each a document leaves and comes back."""
    cache, size = store.cache([]), -(-len(order) // PORTIONS)
    for begin in range(0, len(order), size):
        cache.insert(order[begin : begin + size])
        leaves = chance.choice(order[: begin + size])
        cache.remove(leaves)
        cache.insert(leaves)
    return cache


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def described(found: Compared) -> dict[str, Any]:
    """As clients see it."""
    return {
        "object": "order",
        "documents": found.order,
        "tokens": found.tokens,
        "difference": found.difference,
        "control": {"difference": found.control, "what": "the same documents, read as one running text"},
        "seconds": found.seconds,
    }
