"""Near keys stand at positions that grow with the text. At a million, a float32 angle is off by 0.06; only differences
of positions count, so that a text there is read as exactly as at its beginning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.attention import api
from contentrope.context import WindowedContext
from contentrope.rotary import Rotation, rotation_of
from contentrope.window import far_from_near, initial_window, to_far
from tests.support import TERMINATOR, WINDOW, WINDOWED, lively_model, random_ids

FAR_OUT = 10**6 + 3
SEQ = 50
FREQUENCY = torch.tensor([[1.0, 0.3, 0.01]], dtype=torch.float64)


def in_table(self: WindowedContext, positions: Tensor, bound: int, origin: int = 0) -> Rotation:
    """A context knows how many columns were read, and expects no positions beyond them: this one has more room."""
    return self.rotations.at(positions, self.chunk.wide, bound=bound if origin else FAR_OUT + SEQ, origin=origin)


def in_float32(self: WindowedContext, positions: Tensor, bound: int, origin: int = 0) -> Rotation:
    """The control: what many models do."""
    return rotation_of((positions + origin)[..., None, None].float() * self.rotations.inverse_frequency.float())


def to_far_in_float32(address: Tensor, begins: Tensor, frequency: Tensor, dtype: torch.dtype) -> Tensor:
    return address - begins[..., None, None].float() * frequency.float()


def read_from(first: int, model: cr.Transformer, sizes: Sequence[int]) -> Tensor:
    """Logits of a text before which so many positions were taken, of which nothing is left to be read."""
    ids = random_ids(2, SEQ)
    cache = model.new_cache(len(ids), max_tokens=SEQ)
    window = initial_window(WINDOW["window"], len(ids), ids.device)
    cache.columns.state = replace(cache.state, window=window._replace(positions=window.positions + first))
    parts, step = [], 0
    while cache.length < SEQ:
        parts.append(model(ids[:, cache.length : cache.length + sizes[step % len(sizes)]], cache=cache))
        step += 1
    assert cache.state.window is not None
    assert int(cache.state.window.positions.min()) == first + SEQ
    return torch.cat(parts, dim=1)


def errors(sizes: Sequence[int]) -> tuple[float, float]:
    """Of a float32 model against float64, at the beginning of a text and a million tokens later."""
    rounded = lively_model(WINDOWED, dtype=torch.float32)
    exact = read_from(0, copy.deepcopy(rounded).double(), sizes)
    there, here = (float((read_from(first, rounded, sizes) - exact).abs().max()) for first in (FAR_OUT, 0))
    return there, here


@pytest.mark.parametrize("sizes", [(1,), (7, 1, 1)], ids=["single", "mixed"])
def test_a_model_reads_as_exactly_after_a_million_tokens(sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowedContext, "_at", in_table)
    there, here = errors(sizes)
    assert there <= 3 * here


@pytest.mark.parametrize("fault", ["near", "leaving"])
def test_float32_angles_do_not(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowedContext, "_at", in_float32 if fault == "near" else in_table)
    if fault == "leaving":
        monkeypatch.setattr("contentrope.context.windowed.to_far", to_far_in_float32)
    there, here = errors((1,))
    assert there > 100 * here


@pytest.mark.parametrize("make", [lambda *given: to_far(None, *given), lambda *given: far_from_near(10, *given)])
def test_angles_between_near_and_far_are_exact_anywhere(make: Callable[..., Tensor]) -> None:
    begins = torch.arange(FAR_OUT, FAR_OUT + 9)[None]
    exact, found = (rotation_of(make(begins, FREQUENCY, kind).double()) for kind in (torch.float64, torch.float32))
    assert float((exact.cos - found.cos).abs().max()) < 1e-6
    plain = rotation_of(begins.float()[..., None, None] * FREQUENCY.float())
    right = rotation_of(begins.double()[..., None, None] * FREQUENCY)
    assert float((plain.cos - right.cos).abs().max()) > 1e-3


def test_attention_by_itself_is_exact_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    units = cr.segment(random_ids(1, SEQ), cr.Terminators({TERMINATOR}), max_length=7)
    given: dict[str, Any] = {"units": units, "angles": torch.zeros(1, SEQ, 2, 3), "frequencies": FREQUENCY}
    q, k, v = torch.randn(3, 1, 2, SEQ, 6, generator=torch.Generator().manual_seed(0))
    exact = cr.addressed_attention(q.double(), k.double(), v.double(), **given, window=9)
    here = cr.addressed_attention(q, k, v, **given, window=9)
    positions = api.unit_positions
    monkeypatch.setattr(api, "unit_positions", lambda units: FAR_OUT + positions(units))
    there = cr.addressed_attention(q, k, v, **given, window=9)
    assert float((there - exact).abs().max()) <= 3 * float((here - exact).abs().max())
    assert not torch.equal(there, here)
