"""No token sees a later one: whatever follows t, the logits up to t stay the same to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.attention import pairs, tiled
from contentrope.context import AddressedContext
from tests.support import KNOW_MEMORY, READ_UNITS, TERMINATOR, VARIANTS, VOCABULARY, WINDOWED, lively_model, random_ids

MARKER = VOCABULARY - 1
BEYOND_TWO_TILES = 150
"""Addressed attention works in tiles of 64 queries."""

Masks = dict[str, Tensor]

BACKENDS = ("reference", "tiled")

# Backends are a matter of addressed attention; the other schemes never ask for one.
scheme_and_backend = pytest.mark.parametrize(
    ("scheme", "backend"),
    [(name, backend) for name in VARIANTS for backend in (BACKENDS if name in KNOW_MEMORY else ("auto",))],
)
addressed = pytest.mark.parametrize("scheme", KNOW_MEMORY)
backends = pytest.mark.parametrize("backend", BACKENDS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def logits_of(model: cr.Transformer, ids: Tensor, masks: Masks) -> Tensor:
    # Schemes that draw at random must draw the same for both texts.
    torch.manual_seed(5)
    with torch.no_grad():
        return model(ids, **masks)


def futures(ids: Tensor, t: int) -> dict[str, Tensor]:
    """The same text up to t, followed by something else; the last two also move all later unit ends."""
    other, no_ends, all_ends = ids.clone(), ids.clone(), ids.clone()
    other[:, t + 1 :] = random_ids(*ids.shape, seed=99)[:, t + 1 :]
    no_ends[:, t + 1 :] = ids[:, t + 1 :] % (VOCABULARY - 1) + 1
    all_ends[:, t + 1 :] = TERMINATOR
    found = {"other tokens": other, "no ends": no_ends, "nothing but ends": all_ends}
    return {name: changed for name, changed in found.items() if not torch.equal(changed, ids)}


def check_causal(model: cr.Transformer, ids: Tensor, times: list[int], masks: Masks | None = None) -> None:
    masks = masks or {}
    expected = logits_of(model, ids, masks)
    for t in times:
        for name, changed in futures(ids, t).items():
            found = logits_of(model, changed, masks)
            assert not torch.equal(found[:, t + 1 :], expected[:, t + 1 :]), f"{name} after {t}: nothing was changed"
            assert torch.equal(found[:, : t + 1], expected[:, : t + 1]), f"{name} after {t} changes what came before"


def several_times(seq: int) -> list[int]:
    return [0, 1, seq // 3, seq // 2, seq - 2]


@scheme_and_backend
@dtypes
def test_later_tokens_change_nothing(scheme: str, backend: str, dtype: torch.dtype) -> None:
    check_causal(lively_model(scheme, dtype=dtype, backend=backend), random_ids(3, 23), several_times(23))


@scheme_and_backend
@dtypes
def test_later_tokens_change_nothing_across_tiles(scheme: str, backend: str, dtype: torch.dtype) -> None:
    # Before, at and after the seams of the tiles; a unit may well cross one.
    times = [10, 62, 63, 64, 100, 127, 128, 140]
    model = lively_model(scheme, dtype=dtype, backend=backend, max_unit_length=20)
    check_causal(model, random_ids(2, BEYOND_TWO_TILES, end_rate=0.1), times)


MODELS: dict[str, dict[str, Any]] = {
    "grouped queries": {"heads": 4, "kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "interleaved pairs": {"rotary": cr.RotaryConfig(pairs="interleaved")},
    "partial rotary": {"rotary": cr.RotaryConfig(fraction=0.5), "dim": 32},
    "model-wide frequencies": {"rotary": cr.RotaryConfig(frequencies="model_wide")},
    "odd sizes": {"dim": 42, "heads": 3, "layers": 2},
}


@scheme_and_backend
@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_later_tokens_change_nothing_in_any_model(scheme: str, backend: str, settings: dict[str, Any]) -> None:
    model = lively_model(scheme, backend=backend, dtype=torch.float32, **settings)
    check_causal(model, random_ids(2, 19), several_times(19))


def padding(kind: str, batch: int, seq: int) -> Tensor:
    """Rows of unequal length, padded on the left, on the right, or with holes; at least one real token each."""
    columns, rows = torch.arange(seq), torch.arange(batch)[:, None]
    return {
        "left": columns >= 3 * rows,
        "right": columns < seq - 3 * rows,
        "holes": (columns + rows) % 5 != 0,
    }[kind]


@scheme_and_backend
@dtypes
@pytest.mark.parametrize("kind", ["left", "right", "holes"])
def test_later_tokens_change_nothing_beside_padding(scheme: str, backend: str, dtype: torch.dtype, kind: str) -> None:
    masks = {"valid": padding(kind, 3, 23)}
    check_causal(lively_model(scheme, dtype=dtype, backend=backend), random_ids(3, 23), [0, 7, 12, 15], masks)


@addressed
@backends
@dtypes
@pytest.mark.parametrize(("learn", "seq"), [(False, BEYOND_TWO_TILES), (True, 23)], ids=["fixed", "learned"])
def test_later_tokens_change_nothing_under_competition_and_sharpness(
    scheme: str, backend: str, dtype: torch.dtype, learn: bool, seq: int
) -> None:
    options = {"competition": 0.7, "learn_competition": learn, "sharpness": 0.4, "learn_sharpness": learn}
    model = lively_model(scheme, dtype=dtype, backend=backend, options=options)
    check_causal(model, random_ids(2, seq), several_times(seq))


@addressed
@backends
@dtypes
@pytest.mark.parametrize("seq", [23, BEYOND_TWO_TILES])
def test_later_tokens_change_nothing_around_memory_units(
    scheme: str, backend: str, dtype: torch.dtype, seq: int
) -> None:
    model = lively_model(scheme, dtype=dtype, backend=backend, options={"competition": 1.0})
    memory = torch.rand(2, seq, generator=torch.Generator().manual_seed(1)) < 0.5
    check_causal(model, random_ids(2, seq), several_times(seq), {"memory": memory})


@pytest.mark.parametrize("window", [0, 1, 5, 30, 200])
@pytest.mark.parametrize("with_memory", [False, True], ids=["", "memory"])
def test_later_ends_move_no_edge_of_a_tile(window: int, with_memory: bool) -> None:
    """Products of other shapes round otherwise, on some processors."""
    seq, edges = 150, set()
    generator = torch.Generator().manual_seed(3)
    memory = torch.rand(2, seq, generator=generator) < 0.9 if with_memory else None
    ids = random_ids(2, seq, end_rate=0.2)

    def tiles(ids: Tensor, t: int) -> list[tuple[int, int, int]]:
        units = cr.segment(ids, cr.Terminators({TERMINATOR}), max_length=20, memory=memory)
        found = tiled.tiles_of(pairs.PairRule.among(units, window), 1)
        return [(tile.begin, tile.band, tile.far) for tile in found if tile.begin <= t]

    for t in range(0, seq, 7):
        expected = tiles(ids, t)
        edges.update(expected)
        for name, changed in futures(ids, t).items():
            assert tiles(changed, t) == expected, f"{name} after {t}"
    assert len(edges) > 1


@addressed
@backends
@dtypes
def test_a_later_marker_makes_no_earlier_unit_a_reader(scheme: str, backend: str, dtype: torch.dtype) -> None:
    model = lively_model(scheme, dtype=dtype, backend=backend, reader=(MARKER,))
    ids = random_ids(2, 23)
    ids[ids == MARKER] = 1
    ids[:, 15] = MARKER
    check_causal(model, ids, [3, 8, 13, 14, 15, 16, 20])


@pytest.mark.parametrize(
    ("scheme", "name"),
    [*((scheme, "ends") for scheme in READ_UNITS), *((scheme, "memory") for scheme in KNOW_MEMORY)]
    + [(scheme, "valid") for scheme in VARIANTS],
)
@dtypes
def test_later_masks_change_nothing(scheme: str, name: str, dtype: torch.dtype) -> None:
    """What the caller says of later tokens is part of the future too."""
    model, ids = lively_model(scheme, dtype=dtype), random_ids(2, 23)
    generator = torch.Generator().manual_seed(2)
    first, second = torch.rand(2, 2, 23, generator=generator) < 0.5
    expected = logits_of(model, ids, {name: first})
    for t in several_times(23):
        changed = torch.where(torch.arange(23) > t, second, first)
        found = logits_of(model, ids, {name: changed})
        assert torch.equal(found[:, : t + 1], expected[:, : t + 1])
        assert t > 20 or not torch.equal(found, expected)


@scheme_and_backend
def test_no_gradient_reaches_an_earlier_logit_from_a_later_embedding(scheme: str, backend: str) -> None:
    """Exactly zero: a dependence too faint to move a bit would still show here."""
    model, ids = lively_model(scheme, backend=backend), random_ids(1, 17)
    embedded: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    model.embedding.register_forward_hook(keep)
    for t in (0, 5, 9, 15):
        embedded.clear()
        model(ids)[:, t].square().sum().backward()
        gradient = embedded[0].grad
        assert gradient is not None
        assert bool((gradient[:, : t + 1] != 0).any())
        assert bool((gradient[:, t + 1 :] == 0).all())


# --- The negative control ---


class LeakyContext(AddressedContext):
    """The paper's formula taken at its word: every query carries the address of its own unit, open or not."""

    def _set_rotations(self, by_slot: Tensor | None) -> None:
        super()._set_rotations(by_slot)
        assert self.addressed_rotation is not None
        self.query_rotation = self.addressed_rotation
        self.rule = replace(self.rule, closes=torch.ones_like(self.rule.closes), memo={})


@backends
@dtypes
@pytest.mark.parametrize("seq", [23, BEYOND_TWO_TILES])
def test_addresses_of_open_units_leak_the_future(
    backend: str, dtype: torch.dtype, seq: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contentrope.schemes.addressed.AddressedContext", LeakyContext)
    model, ids = lively_model("content", dtype=dtype, backend=backend), random_ids(2, seq)
    with pytest.raises(AssertionError, match="changes what came before"):
        check_causal(model, ids, several_times(seq))


@backends
@pytest.mark.parametrize("seq", [23, BEYOND_TWO_TILES])
def test_open_units_outside_the_window_leak_the_future(backend: str, seq: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that has no room but for the token itself: the rest of its unit is read at the address."""
    window_of = pairs.near_window

    def too_narrow(*given: Any) -> pairs.Near:
        near = window_of(*given)
        return near._replace(begin=torch.minimum(near.begin + 7, torch.arange(seq)))

    monkeypatch.setattr(pairs, "near_window", too_narrow)
    model, ids = lively_model(WINDOWED, backend=backend), random_ids(2, seq)
    with pytest.raises(AssertionError, match="changes what came before"):
        check_causal(model, ids, several_times(seq))


@backends
def test_the_leak_is_large(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a matter of bits: the unit's later tokens move what stands before them."""
    monkeypatch.setattr("contentrope.schemes.addressed.AddressedContext", LeakyContext)
    model = lively_model("content", backend=backend)
    text = torch.tensor([[1, 2, TERMINATOR, 3, 4, 5, TERMINATOR]])
    other = torch.tensor([[1, 2, TERMINATOR, 3, 4, 6, TERMINATOR]])
    moved = (logits_of(model, text, {}) - logits_of(model, other, {}))[:, :5].abs()
    assert float(moved[:, :3].max()) == 0
    assert float(moved[:, 3:].max()) > 1e-3
