"""Memory units in attached models see only themselves, so their order means nothing to their readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

import contentrope as cr
import contentrope.hf as chf
from tests.hf.models import ARCHITECTURES, TERMINATOR, enliven, logits, padded_dtype, random_ids, tiny
from tests.hf.test_attach import Letters
from tests.hf.test_cache import in_chunks, same

every = pytest.mark.parametrize("name", ARCHITECTURES)
MARKER = 5


def remembering(name: str, *, lively: bool = True, reader: Any = (MARKER,), **settings: Any) -> Any:
    model = tiny(name, **settings)
    options = {"competition": 0.5, "learn_competition": True} if lively else {}
    chf.attach(model, units={TERMINATOR}, max_length=7, reader=reader, check=False, **options)
    return enliven(model) if lively else model


def text(seq: int = 23) -> Tensor:
    """Some units of memory, a marker, and more."""
    ids = random_ids(2, seq, end_rate=0.3)
    ids[ids == MARKER] = 6
    ids[0, 13], ids[1, 10] = MARKER, MARKER
    return ids


@every
@pytest.mark.parametrize("lively", [True, False], ids=["addresses", "zero"])
def test_readers_do_not_see_the_order_of_memory_units(name: str, lively: bool) -> None:
    """As short as the shortest window."""
    one = torch.tensor([[7, TERMINATOR, 9, TERMINATOR, 11, TERMINATOR, MARKER, 20, 21]])
    other = torch.tensor([[11, TERMINATOR, 7, TERMINATOR, 9, TERMINATOR, MARKER, 20, 21]])
    model = remembering(name, lively=lively)
    found = logits(model, one), logits(model, other)
    same(found[0][:, 6:], found[1][:, 6:])
    same(found[0][:, :2], found[1][:, 2:4])
    unmarked = remembering(name, lively=lively, reader=())
    assert float((logits(unmarked, one) - logits(unmarked, other))[:, 6:].abs().max()) > 1e-4


def test_queries_of_memory_are_not_scaled_by_what_lies_before_them() -> None:
    """Where queries grow with the length of the text, from the eighth token on; a reader's do."""
    units = torch.tensor([[first, TERMINATOR] for first in range(7, 14)])
    one, other = (torch.cat((x.flatten(), torch.tensor([MARKER, 20])))[None] for x in (units, units.flip(0)))
    model = remembering("ministral3")
    same(logits(model, one)[:, :2], logits(model, other)[:, 12:14])
    same(logits(model, one)[:, 14:], logits(model, other)[:, 14:])
    unscaled = remembering("ministral3", rope_parameters={**model.config.rope_parameters, "llama_4_scaling_beta": 0.0})
    assert float((logits(model, one) - logits(unscaled, one))[:, 14:].abs().max()) > 1e-3


@every
def test_the_way_through_the_models_own_attention_equals_the_reference(name: str) -> None:
    model, ids = remembering(name, dtype=padded_dtype(name)), text()
    adapter = chf.adapter_of(model)
    adapter.backend = "reference"
    padding = torch.arange(23) >= torch.tensor([[0], [4]])
    expected = logits(model, ids), logits(model, ids, attention_mask=padding)
    adapter.layers = {index: layer._replace(plain=False) for index, layer in adapter.layers.items()}
    same(logits(model, ids), expected[0])
    same(logits(model, ids, attention_mask=padding)[padding], expected[1][padding])


@every
@pytest.mark.parametrize("sizes", [(1,), (6, 1, 4)], ids=["tokens", "chunks"])
def test_chunked_prefill_and_decode_equal_prefill(name: str, sizes: tuple[int, ...]) -> None:
    model, ids = remembering(name), text()
    expected = logits(model, ids, use_cache=False)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=30)):
        same(in_chunks(model, ids, sizes, cache), expected)


def test_a_rolled_back_cache_knows_memory_from_readers() -> None:
    model, ids = remembering("llama"), text()
    expected = logits(model, ids, use_cache=False)
    for kept in (3, 9, 14, 17):
        cache = DynamicCache(config=model.config)
        logits(model, torch.cat((ids[:, :kept], ids[:, 9:15]), dim=1), past_key_values=cache)
        cache.crop(-6)
        same(in_chunks(model, ids[:, kept:], (2, 1), cache), expected[:, kept:])


def test_memory_is_read_from_the_text_saved_and_compared(tmp_path: Path) -> None:
    model, letters = tiny("llama"), Letters()
    chf.attach(model, letters, units="line", reader="5")
    assert chf.adapter_of(model).segmenter.reader.ids == (letters.text.index("5"),)
    chf.save(model, tmp_path)
    other = tiny("llama")
    chf.attach(other, letters, units="line")
    with pytest.raises(cr.CheckpointError, match=r"reader: \[\] here, \[8\] in the file"):
        chf.load(other, tmp_path)
    chf.detach(other)
    for reader, tokenizer, message in (("|", None, "tokenizer"), ("~~", letters, "no token contains")):
        with pytest.raises(cr.InputError, match=message):
            chf.attach(other, tokenizer, units={TERMINATOR}, reader=reader)
