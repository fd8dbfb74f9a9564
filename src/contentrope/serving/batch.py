"""Requests over one set of documents, decoded together.

Rows are padded on the left, between the documents and the messages; padding is seen by nobody. So a row's answer does
not depend on the others, but for rounding. A batch takes in no rows: who comes later goes into the next one.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.serving.looking import Look, Shares, Sight, Traces
from contentrope.serving.requests import Event, Request, Usage
from contentrope.serving.sampling import draw
from contentrope.serving.text import Writing
from contentrope.store import SetCache


class Speaker:
    """A model and how its tokens are read: which end an answer, which stand for text."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        generation = getattr(model, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [ends]
        self.ends = frozenset(token for token in (*ends, tokenizer.eos_token_id) if token is not None)
        # Embeddings are often filled up to a round number; such ids stand for no text.
        self.tokens = min(len(tokenizer), model.config.get_text_config().vocab_size)
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        only_last = "logits_to_keep" in inspect.signature(inner.forward).parameters
        self._options: dict[str, Any] = {"use_cache": True} | ({"logits_to_keep": 1} if only_last else {})

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def logits(self, ids: Tensor, mask: Tensor, cache: SetCache | None) -> Float[Tensor, "rows vocab"]:
        """Of the next token; ``mask`` covers all columns, those of the cache too."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        found = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, **self._options
        )
        return found.logits[:, -1, : self.tokens]


@dataclass
class Row:
    request: Request
    writing: Writing
    generator: torch.Generator
    traces: Traces | None = None
    """If what its tokens read is asked for."""
    drawn: int = 0

    def end_after(self, token: int, ends: frozenset[int]) -> tuple[str, Literal["stop", "length"] | None]:
        """Take a token: the text that is certain now, and why the answer ends with it."""
        self.drawn += 1
        if token in ends:
            return self.writing.rest(), "stop"
        text = self.writing.add(token)
        if self.writing.stopped:
            return text, "stop"
        if self.drawn == self.request.new_tokens:
            return text + self.writing.rest(), "length"
        return text, None

    def look_after(self, shares: Shares | None, text: str, *, is_last: bool) -> Look | None:
        if self.traces is None:
            return None
        return self.traces.after(shares, self.writing.made, text, is_last=is_last)


class Batch:
    """Made with the first forward pass: documents are in the cache, all messages are read."""

    def __init__(self, speaker: Speaker, cache: SetCache, requests: Sequence[Request]) -> None:
        """``cache``: a copy of the set's, with a row for each request."""
        self.speaker, self.cache, self.documents = speaker, cache, cache.tokens
        self.sight = Sight(speaker.model, cache) if any(request.look for request in requests) else None
        self.rows = [self._row(request) for request in requests]
        longest = max(len(request.prompt) for request in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.int64)
        mask = torch.zeros(len(requests), self.documents + longest, dtype=torch.int64)
        mask[:, : self.documents] = 1
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, self.documents + longest - len(request.prompt) :] = 1
        device = speaker.model.get_input_embeddings().weight.device
        self.mask = mask.to(device)
        self.logits = self._logits(ids.to(device))

    def _row(self, request: Request) -> Row:
        traces = Traces(self.sight.units) if self.sight is not None and request.look else None
        return Row(request, Writing(self.speaker.decode, request.stop), request.sampling.generator(), traces)

    def _logits(self, ids: Tensor) -> Float[Tensor, "rows vocab"]:
        """Of the next token of every row; what is read is noted while a row asks for it."""
        if self.sight is None or all(row.traces is None for row in self.rows):
            self.sight = None
            return self.speaker.logits(ids, self.mask, self.cache)
        with self.sight.of_next_call():
            return self.speaker.logits(ids, self.mask, self.cache)

    def step(self) -> None:
        """One token for every row. Those that end leave; the model reads the tokens of the others."""
        self._leave([not row.request.ended for row in self.rows])
        if not self.rows:
            return
        samplings, generators = zip(*((row.request.sampling, row.generator) for row in self.rows), strict=True)
        tokens = draw(self.logits, samplings, generators)
        going_on = []
        for place, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            text, finish = row.end_after(token, self.speaker.ends)
            look = row.look_after(self._shares(place, token), text, is_last=finish is not None)
            going_on.append(finish is None)
            if finish is not None:
                row.request.ended = True
                usage = Usage(self.documents, self.documents + len(row.request.prompt), row.drawn)
                row.request.tell(Event(text, finish, usage, look=look))
            elif text:
                row.request.tell(Event(text, look=look))
        self._leave(going_on)
        if self.rows:
            kept = [token for token, goes_on in zip(tokens, going_on, strict=True) if goes_on]
            ids = torch.tensor(kept, device=self.mask.device)[:, None]
            self.mask = torch.cat((self.mask, torch.ones_like(ids)), dim=1)
            self.logits = self._logits(ids)

    def _shares(self, row: int, token: int) -> Shares | None:
        """What a token of a row read; the end of an answer is no text that could have been read for."""
        if self.sight is None or self.sight.shares is None or token in self.speaker.ends:
            return None
        return self.sight.shares[row]

    def _leave(self, stays: list[bool]) -> None:
        if all(stays):
            return
        self.rows = [row for row, keep in zip(self.rows, stays, strict=True) if keep]
        if self.rows:
            index = torch.tensor(stays, device=self.mask.device).nonzero()[:, 0]
            self.mask, self.logits = self.mask[index], self.logits[index]
            self.cache.batch_select_indices(index)
            if self.sight is not None and self.sight.shares is not None:
                self.sight.shares = self.sight.shares[index.cpu()]
