"""Under a near window keys are stored as plain RoPE has them, and rotated once, in place, when their unit leaves."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope import window
from contentrope.rotary import rotate, rotation_of
from contentrope.units.table import Units
from tests.cache.helpers import Masks, at_once, close, new_cache, read, snapshot
from tests.support import TERMINATOR, WINDOW, WINDOWED, lively_model, random_ids
from tests.support.window_by_hand import first_near, tokens_by_hand

LENGTH, LONGEST = 40, 7


def masks_of(kind: str, rows: int = 2) -> Masks:
    generator = torch.Generator().manual_seed(4)
    memory, valid = torch.rand(2, rows, LENGTH, generator=generator) < torch.tensor([0.3, 0.7])[:, None, None]
    return {"plain": {}, "padding": {"valid": valid}, "memory": {"memory": memory}}[kind]


def expected_far(ids: Tensor, count: int, masks: Masks) -> Tensor:
    """Which of the first columns, padding aside, are read far by what comes after the last of them."""
    texts = tokens_by_hand(ids, LONGEST, TERMINATOR, **masks)
    far = torch.zeros(len(ids), count, dtype=torch.bool)
    for row, text in enumerate(texts):
        last = next((token for token in reversed(text[:count]) if token is not None), None)
        for column, token in enumerate(text[:count]):
            if token is not None and last is not None:
                is_left = column < first_near(text[:count], WINDOW["window"])
                far[row, column] = token.unit < last.unit if token.memory else is_left
    return far


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [*(("content", kind) for kind in ("plain", "padding", "memory")), ("random", "plain"), ("local", "memory")],
)
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 5)], ids=["single", "mixed"])
def test_keys_are_rotated_once_when_their_unit_leaves(scheme: str, kind: str, sizes: Sequence[int]) -> None:
    """By the angles that are stored beside them; values never change."""
    model, ids, masks = lively_model(scheme, options=WINDOW), random_ids(2, LENGTH), masks_of(kind)
    cache = new_cache(model, max_tokens=LENGTH)
    valid = masks.get("valid", torch.ones_like(ids).bool())
    before, times = snapshot(cache), torch.zeros(2, LENGTH, dtype=torch.int64)
    while cache.length < LENGTH:
        old, size = cache.length, sizes[cache.length % len(sizes)]
        read(model, cache, ids[:, : old + size], (size,), masks)
        after = snapshot(cache)
        assert torch.equal(after.values[..., :old, :], before.values)
        assert torch.equal((after.addressed & valid[:, : cache.length]), expected_far(ids, cache.length, masks))
        left = after.addressed[:, :old] & ~before.addressed
        changed = (after.keys[..., :old, :] != before.keys).any(-1).any(2)
        # A zero address leaves a unit's key as it was where it begins at position 0.
        assert not bool((changed & ~left).any())
        assert scheme == "local" or torch.equal(changed, left.expand_as(changed))
        times[:, :old] += left
        if cache.columns.angles:
            rotation = rotation_of(cache.columns.angles[0][:, :old]).only_where(left)
            rotated = rotate(before.keys.transpose(2, 3), rotation).transpose(2, 3)
            close(after.keys[..., :old, :], rotated)
        before = after
    assert int(times.max()) == 1
    assert bool((times.sum(1) > LENGTH // 2).all()) or kind == "padding"


def test_far_keys_are_a_prefix() -> None:
    model, ids = lively_model(WINDOWED), random_ids(3, LENGTH)
    cache, ends = new_cache(model, 3, LENGTH), []
    for t in range(LENGTH):
        model(ids[:, t : t + 1], cache=cache)
        addressed, state = cache.columns.rotated, cache.state.window
        assert state is not None
        assert torch.equal(addressed, addressed.cummin(1).values)
        assert torch.equal(addressed.sum(1, keepdim=True), state.far)
        assert (state.least, state.most) == (int(state.far.min()), int(state.far.max()))
        ends.append(state.far[:, 0])
    assert len(torch.stack(ends).unique(dim=0)) > 10  # many units have left, and not in all rows at once


MODELS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "learned": {"options": {"learn_competition": True, "sharpness": 0.3}},
    "grouped": {"heads": 4, "kv_heads": 2},
    "by head": {"heads": 4, "kv_heads": 2, "rotary": cr.RotaryConfig(frequencies="model_wide", pairs="interleaved")},
}


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("rows", [1, 3])
def test_single_tokens_through_many_units_that_leave(settings: dict[str, Any], rows: int) -> None:
    model, ids = lively_model(WINDOWED, layers=2, **settings), random_ids(rows, 90)
    cache = new_cache(model, rows, 1)
    close(read(model, cache, ids, (1,)), at_once(model, ids))
    assert cache.state.window is not None
    assert int(cache.state.window.far.min()) > 75


@pytest.mark.parametrize("kind", ["plain", "padding", "memory"])
def test_a_cache_rolled_back_to_any_length_is_a_fresh_one(kind: str) -> None:
    """Keys, and what the window knows; as the unit that left last is near again."""
    model, ids, masks = lively_model(WINDOWED, layers=2), random_ids(2, LENGTH), masks_of(kind)
    whole, fresh = new_cache(model, max_tokens=LENGTH), new_cache(model, max_tokens=LENGTH)
    read(model, whole, ids, (3, 1), masks)
    for length in range(1, LENGTH):
        read(model, fresh, ids[:, :length], (1,), masks)
        cache = copy.deepcopy(whole)
        cache.truncate(length)
        close(snapshot(cache).keys, snapshot(fresh).keys)
        assert torch.equal(cache.columns.rotated, fresh.columns.rotated)
        ours, theirs = cache.state.window, fresh.state.window
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours.positions, theirs.positions)
        assert torch.equal(ours.far, theirs.far)
        if length % 5 == 0:
            close(read(model, cache, ids, (7, 1), masks), at_once(model, ids, masks)[:, length:])


def rows_that_differ() -> Tensor:
    """Units of two tokens, of five, and of seven."""
    ids = torch.randint(1, 11, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    for row, every in enumerate((2, 5, 7)):
        ids[row, every - 1 :: every] = TERMINATOR
    return ids


@pytest.mark.parametrize("order", [[0], [1], [2], [1, 1, 2, 0]], ids=str)
@pytest.mark.parametrize("sizes", [(1,), (4,)], ids=["single", "chunks"])
def test_rows_that_change_places_take_their_window_along(order: list[int], sizes: Sequence[int]) -> None:
    """A row alone, too, of which the host knew no more than of all."""
    model, ids, index = lively_model(WINDOWED, layers=2), rows_that_differ(), torch.tensor(order)
    for cut in (12, 19, 26):
        cache = new_cache(model, 3, LENGTH)
        read(model, cache, ids[:, :cut], (5, 1))
        cache.reorder(index)
        close(read(model, cache, ids[index], sizes), at_once(model, ids[index])[:, cut:])


# --- Controls: faults that the tests above find ---


def test_keys_that_stay_rotated_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled_back = window.rolled_back
    forgetful = lambda *given, **named: (rolled_back(*given, **named)[0], None)  # noqa: E731
    monkeypatch.setattr("contentrope.cache.columns.rolled_back", forgetful)
    with pytest.raises(AssertionError, match="not close"):
        test_a_cache_rolled_back_to_any_length_is_a_fresh_one("plain")


def test_bounds_of_other_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row is taken for the one whose window the host knew."""
    leaving = window._leaving

    def plain_range(before: window.WindowState, *rest: Any) -> window.Leaving | None:
        return leaving(before._replace(most=before.least), *rest)

    monkeypatch.setattr(window, "_leaving", plain_range)
    with pytest.raises(AssertionError, match="not close"):
        test_rows_that_change_places_take_their_window_along([2], (1,))


def test_a_unit_that_leaves_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    move = window.move

    def early(before: window.WindowState, units: Units, *rest: Any, **named: Any) -> window.Moved:
        return move(before._replace(width=before.width - 3), units, *rest, **named)

    monkeypatch.setattr("contentrope.schemes.addressed.move", early)
    with pytest.raises(AssertionError):
        test_single_tokens_through_many_units_that_leave({}, 1)


@pytest.mark.parametrize("sizes", [(1,), (4,)], ids=["single", "chunks"])
def test_addresses_that_are_not_finite_are_refused_when_their_unit_leaves(sizes: Sequence[int]) -> None:
    model, ids = lively_model(WINDOWED), random_ids(2, LENGTH)
    cache, project = new_cache(model, max_tokens=LENGTH), model.scheme.address.project
    read(model, cache, ids[:, :12], (4,))
    kept = project.weight.detach().clone()
    with torch.no_grad():
        project.weight.fill_(torch.nan)
    with pytest.raises(cr.InputError, match=r"addresses of row 0, token . are not finite"):
        read(model, cache, ids, sizes)
    with torch.no_grad():
        project.weight.copy_(kept)
    length = cache.length
    close(read(model, cache, ids, sizes), at_once(model, ids)[:, length:])
