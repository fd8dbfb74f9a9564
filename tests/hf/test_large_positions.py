"""Near keys stand at positions that grow with the text; only their differences count, a million tokens on as well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from contentrope.hf import adapter
from tests.hf.models import WINDOWED, attached, logits, random_ids

FAR_OUT, SEQ = 10**6 + 3, 40
SCALED_BY_POSITION = "ministral3"
NAMES = [name for name in WINDOWED if name != SCALED_BY_POSITION]


def read_from(first: int, model: PreTrainedModel, sizes: tuple[int, ...]) -> Tensor:
    ids, positions = random_ids(2, SEQ), first + torch.arange(SEQ).expand(2, -1)
    cache, parts, begin = DynamicCache(config=model.config), [], 0
    while begin < SEQ:
        part = slice(begin, begin + sizes[len(parts) % len(sizes)])
        parts.append(logits(model, ids[:, part], position_ids=positions[:, part], past_key_values=cache))
        begin = part.stop
    return torch.cat(parts, dim=1)


def moved(name: str, sizes: tuple[int, ...]) -> float:
    """How far logits are from those at the beginning of a text, beyond a window's length."""
    model = attached(name, window=10, competition=1.0, dtype=torch.float64)
    here, there = (read_from(first, model, sizes) for first in (0, FAR_OUT))
    return float((here - there)[:, 10:].abs().max() / here.abs().max())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(SEQ,), (11, 1, 1, 7)], ids=["whole", "chunks"])
def test_a_text_is_read_alike_a_million_tokens_on(
    name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "EXACT_UP_TO", 0)
    exact = moved(name, sizes)
    monkeypatch.setattr(adapter, "EXACT_UP_TO", SEQ)  # the control: the model's own float32
    assert exact < 1e-5
    assert moved(name, sizes) > 10 * exact


def test_positions_that_float32_holds_are_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an attached model is compared with an untouched one bit by bit, and a token costs nothing more."""
    model = attached("llama", window=10, competition=1.0)

    def refuse(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr(adapter, "exact_beyond", refuse)
    logits(model, random_ids(1, SEQ))
    monkeypatch.setattr(adapter, "EXACT_UP_TO", SEQ - 1)
    with pytest.raises(AssertionError):
        logits(model, random_ids(1, SEQ))
