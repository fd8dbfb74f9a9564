"""``contentrope generate`` with a Hugging Face checkpoint: plain, with addresses, or LoRA with addresses."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.experiments.suite import seeded
from contentrope.units import Segmenter


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to draw, and how much."""

    tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop_at_unit_end: bool
    samples: int
    seed: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise InputError(f"tokens must be at least 1, got {self.tokens}")
        if not self.temperature >= 0:
            raise InputError(f"temperature {self.temperature} must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must be in (0, 1], got {self.top_p}")

    def options(self) -> dict[str, Any]:
        """In transformers' words; what was not asked for is switched off, whatever the checkpoint suggests."""
        if not self.temperature:
            return {"max_new_tokens": self.tokens, "do_sample": False}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return {"max_new_tokens": self.tokens, "do_sample": True, **drawn}


def checkpoint_named(name: str) -> str | None:
    """The Hugging Face checkpoint of that name: the folder, the model in it, or a name for the hub; None if none."""
    from contentrope.hf.layout import is_checkpoint

    for place in (Path(name, "model"), Path(name)):
        if is_checkpoint(place):
            return str(place)
    return None if Path(name).exists() else name


def generate_text(name: str, prompt: str, sampling: Sampling, device: str) -> None:
    """Write the prompt and what follows it; a single sample appears as it is drawn."""
    from contentrope.hf.plain import quiet, require_embedded, require_transformers

    require_transformers()
    from contentrope.hf.checkpoints import load_any

    model, tokenizer = load_any(name, device=device)
    given = tokenizer(prompt, return_tensors="pt")["input_ids"].to(device)
    if not given.shape[1]:
        raise InputError(f"the prompt {prompt!r} has no tokens; give another")
    require_embedded(given, model.config, name)
    segmenter = _segmenter(model) if sampling.stop_at_unit_end else None
    one = sampling.samples == 1
    options = sampling.options() | {"pad_token_id": _padding(tokenizer)}
    # Embeddings are often filled up to a round number; such ids stand for no text, and units are cut in text.
    if textless := list(range(len(tokenizer), model.config.vocab_size)):
        options["suppress_tokens"] = textless
    if segmenter is not None:
        options["stopping_criteria"] = [UnitEnd(segmenter)]
    if one:
        _write(prompt)
        options["streamer"] = Printer(tokenizer)
    rows = given.expand(sampling.samples, -1)
    with seeded(sampling.seed), quiet(), torch.no_grad():
        found = model.generate(input_ids=rows, attention_mask=torch.ones_like(rows), **options)
    if one:
        _write("\n")
        return
    for number, row in enumerate(found, start=1):
        print(f"--- sample {number} of {len(found)}")
        end = _first_end(segmenter, row, given.shape[1])
        print(prompt + _text_after(tokenizer, row[:end].tolist(), given.shape[1]))


class UnitEnd:
    """Stops a row when its last token ends a unit."""

    def __init__(self, segmenter: Segmenter) -> None:
        self.segmenter = segmenter

    def __call__(self, ids: Int[Tensor, "rows seq"], scores: Any, **options: Any) -> Bool[Tensor, "rows"]:
        return _closes(self.segmenter, ids)[:, -1]


class Printer:
    """Writes a text as its tokens come: transformers' streamer waits for whole words."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.prompt = self.shown = 0

    def put(self, ids: Tensor) -> None:
        """First the prompt, then token by token."""
        self.ids += ids.flatten().tolist()
        if not self.prompt:
            self.prompt = len(self.ids)
            return
        text = _text_after(self.tokenizer, self.ids, self.prompt)
        if not text.endswith("\ufffd"):  # a character whose other bytes are still to come
            _write(text[self.shown :])
            self.shown = len(text)

    def end(self) -> None:
        """Nothing is held back but half a character."""


def _text_after(tokenizer: Any, ids: list[int], prompt: int) -> str:
    """What comes after the prompt. Decoded with it: some decoders drop the space before a first word."""
    before = tokenizer.decode(ids[:prompt], skip_special_tokens=True)
    return tokenizer.decode(ids, skip_special_tokens=True)[len(before) :]


def _segmenter(model: Any) -> Segmenter:
    import contentrope.hf as chf

    return chf.adapter_of(model).segmenter


def _closes(segmenter: Segmenter, ids: Int[Tensor, "rows seq"]) -> Bool[Tensor, "rows seq"]:
    return segmenter.advance(segmenter.initial(len(ids), ids.device), ids)[0].closes


def _first_end(segmenter: Segmenter | None, row: Int[Tensor, "seq"], prompt: int) -> int:
    """Where a row stops: behind the first unit it ended, what follows being padding."""
    if segmenter is None:
        return len(row)
    ends = _closes(segmenter, row[None])[0, prompt:].nonzero()
    return prompt + int(ends[0]) + 1 if len(ends) else len(row)


def _padding(tokenizer: Any) -> int:
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in known if token is not None)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
