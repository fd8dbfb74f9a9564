"""Chunked prefill and decoding give what one forward pass gives, for every scheme and every chunking."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import contentrope as cr
from contentrope.cache.columns import Facts
from contentrope.context.addressed import Reading
from tests.support import (
    DRAW_AT_RANDOM,
    KNOW_MEMORY,
    LEARNED,
    READ_UNITS,
    TERMINATOR,
    VARIANTS,
    VOCABULARY,
    WINDOW,
    WINDOWED,
    in_chunks,
    lively_model,
    random_ids,
)

TOLERANCE = 1e-12
"""Of logits of about 4. Rounding grows with the weights: tests/fuzz measures by how much."""
BATCH, SEQ = 3, 26
MARKER = VOCABULARY - 1
CHUNKINGS: dict[str, Sequence[int]] = {"single": (1,), "mixed": (4, 1, 1, 7, 2), "whole": (SEQ,)}

Masks = dict[str, Tensor]

BACKENDS = ("reference", "tiled")

every_scheme = pytest.mark.parametrize("scheme", VARIANTS)
# Backends are a matter of addressed attention; the other schemes never ask for one.
scheme_and_backend = pytest.mark.parametrize(
    ("scheme", "backend"),
    [(name, backend) for name in VARIANTS for backend in (BACKENDS if name in KNOW_MEMORY else ("auto",))],
)
addressed = pytest.mark.parametrize("scheme", KNOW_MEMORY)
backends = pytest.mark.parametrize("backend", BACKENDS)
chunkings = pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)


def at_once(model: cr.Transformer, ids: Tensor, **masks: Tensor) -> Tensor:
    # The schemes that draw at random draw once per call, or once per cache.
    torch.manual_seed(3)
    with torch.no_grad():
        return model(ids, **masks)


def streamed(model: cr.Transformer, ids: Tensor, sizes: Sequence[int], **masks: Tensor) -> Tensor:
    torch.manual_seed(3)
    return in_chunks(model, ids, sizes, **masks)


def check_streams(model: cr.Transformer, ids: Tensor, sizes: Sequence[int], **masks: Tensor) -> None:
    torch.testing.assert_close(
        streamed(model, ids, sizes, **masks), at_once(model, ids, **masks), rtol=0, atol=TOLERANCE
    )


def random_mask(rate: float, seed: int, shape: tuple[int, int] = (BATCH, SEQ)) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < rate


def padding(kind: str) -> Tensor:
    columns, rows = torch.arange(SEQ), torch.arange(BATCH)[:, None]
    return {
        "left": columns >= 5 * rows,
        "right": columns < SEQ - 5 * rows,
        "both sides": (columns >= 3 * rows) & (columns < SEQ - 4 * rows),
        # Holes inside units, whole columns of padding, and a row that has not begun.
        "ragged": random_mask(0.6, 4) & (columns != 9) & ((columns > 4) | (rows != 1)),
    }[kind]


@scheme_and_backend
@chunkings
def test_chunks_give_the_logits_of_the_whole(scheme: str, backend: str, sizes: Sequence[int]) -> None:
    # Rows end their units at different columns.
    check_streams(lively_model(scheme, backend=backend), random_ids(BATCH, SEQ), sizes)


@scheme_and_backend
@chunkings
@pytest.mark.parametrize("kind", ["left", "right", "both sides", "ragged"])
def test_chunks_give_the_logits_of_the_whole_beside_padding(
    scheme: str, backend: str, sizes: Sequence[int], kind: str
) -> None:
    check_streams(lively_model(scheme, backend=backend), random_ids(BATCH, SEQ), sizes, valid=padding(kind))


FIXED_SCHEMES = [(name, "auto") for name in VARIANTS if name not in DRAW_AT_RANDOM]


@pytest.mark.parametrize(("scheme", "backend"), [*FIXED_SCHEMES, ("content", "reference"), ("local", "reference")])
@pytest.mark.parametrize("place", ["one on the left", "nine on the left", "anywhere"])
def test_padding_does_not_change_the_real_tokens(scheme: str, backend: str, place: str) -> None:
    """Positions, distances and units count tokens: where padding stands makes no difference to them."""
    model, ids = lively_model(scheme, backend=backend), random_ids(BATCH, SEQ)
    columns = {
        "one on the left": torch.arange(1, SEQ + 1),
        "nine on the left": torch.arange(9, SEQ + 9),
        "anywhere": torch.arange(SEQ) + torch.arange(SEQ) // 3,
    }[place]
    padded = random_ids(BATCH, int(columns[-1]) + 3, seed=8)
    padded[:, columns] = ids
    valid = torch.zeros_like(padded, dtype=torch.bool)
    valid[:, columns] = True
    expected = at_once(model, ids)
    for found in (at_once(model, padded, valid=valid), streamed(model, padded, (6, 1, 3), valid=valid)):
        torch.testing.assert_close(found[:, columns], expected, rtol=0, atol=TOLERANCE)


SETTINGS: dict[str, dict[str, Any]] = {
    "one key head": {"kv_heads": 1},
    "grouped queries": {"heads": 4, "kv_heads": 2},
    "interleaved pairs": {"rotary": cr.RotaryConfig(pairs="interleaved")},
    "partial rotary": {"rotary": cr.RotaryConfig(fraction=0.5)},
    "model-wide frequencies": {"rotary": cr.RotaryConfig(frequencies="model_wide")},
    "all of them": {
        "heads": 4,
        "kv_heads": 2,
        "dim": 32,
        "rotary": cr.RotaryConfig(pairs="interleaved", frequencies="model_wide", fraction=0.5),
    },
}


@every_scheme
@pytest.mark.parametrize("sizes", [(1,), (4, 1, 1, 7, 2)], ids=["single", "mixed"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_chunks_give_the_logits_of_the_whole_in_any_model(
    scheme: str, sizes: Sequence[int], settings: dict[str, Any]
) -> None:
    check_streams(lively_model(scheme, **settings), random_ids(BATCH, SEQ), sizes, valid=padding("left"))


@addressed
@backends
@chunkings
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", [None, "ragged"], ids=["no padding", "ragged"])
def test_competition_and_sharpness_stream(
    scheme: str, backend: str, sizes: Sequence[int], learn: bool, kind: str | None
) -> None:
    options = {"competition": 0.8, "learn_competition": learn, "sharpness": 0.3, "learn_sharpness": learn}
    model = lively_model(scheme, backend=backend, options=options)
    if learn:
        # One number per layer and head, and none like another.
        with torch.no_grad():
            model.scheme.reader.competition.learned.copy_(torch.linspace(-1, 2, 6).view(3, 2))
            model.scheme.reader.sharpness.learned.copy_(torch.linspace(-0.2, 0.7, 6).view(3, 2))
    check_streams(model, random_ids(BATCH, SEQ), sizes, **({"valid": padding(kind)} if kind else {}))


@addressed
@backends
@chunkings
@pytest.mark.parametrize("competition", [0.0, 1.0])
@pytest.mark.parametrize("kind", [None, "ragged"], ids=["no padding", "ragged"])
def test_memory_units_stream(
    scheme: str, backend: str, sizes: Sequence[int], competition: float, kind: str | None
) -> None:
    """By mask, which changes inside units too: only a unit's first token counts."""
    model = lively_model(scheme, backend=backend, options={"competition": competition})
    masks = {"memory": random_mask(0.5, 7)} | ({"valid": padding(kind)} if kind else {})
    check_streams(model, random_ids(BATCH, SEQ), sizes, **masks)


@addressed
@backends
@chunkings
def test_memory_units_before_a_marker_stream(scheme: str, backend: str, sizes: Sequence[int]) -> None:
    model = lively_model(scheme, backend=backend, reader=(MARKER,))
    ids = random_ids(BATCH, SEQ)
    ids[ids == MARKER] = 1
    # At different places, inside a unit in some row, and in the last row nowhere.
    ids[0, 12] = ids[1, 20] = MARKER
    check_streams(model, ids, sizes)
    check_streams(model, ids, sizes, valid=padding("left"))


@pytest.mark.parametrize("scheme", READ_UNITS)
@backends
@chunkings
def test_the_callers_ends_stream(scheme: str, backend: str, sizes: Sequence[int]) -> None:
    model, ids, ends = lively_model(scheme, backend=backend), random_ids(BATCH, SEQ), random_mask(0.3, 5)
    check_streams(model, ids, sizes, ends=ends)
    check_streams(model, ids, sizes, ends=ends, valid=padding("ragged"))
    assert not torch.equal(at_once(model, ids, ends=ends), at_once(model, ids))


@scheme_and_backend
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_a_caller_may_reuse_its_tensors(scheme: str, backend: str, padded: bool) -> None:
    """As loops around graphs do, whose inputs stay where they are. What the cache made of them is read after a
    rollback."""
    model = lively_model(scheme, backend=backend)
    given = {"ids": random_ids(BATCH, SEQ)} | ({"valid": padding("ragged")} if padded else {})
    given |= {"ends": random_mask(0.3, 5)} if scheme in READ_UNITS else {}
    given |= {"memory": random_mask(0.3, 6)} if scheme in KNOW_MEMORY else {}
    found = []
    for reuses in (False, True):
        torch.manual_seed(3)
        cache, kept = model.new_cache(BATCH, max_tokens=SEQ), {name: x[:, :1].clone() for name, x in given.items()}
        for t in (*range(SEQ), *range(SEQ // 2, SEQ)):
            if cache.length == SEQ:
                cache.truncate(t)
            token = {name: x[:, t : t + 1] for name, x in given.items()}
            if reuses:
                token = {name: kept[name].copy_(x) for name, x in token.items()}
            found.append(model(**token, cache=cache))
            for x in kept.values():
                x.zero_()
    assert all(map(torch.equal, found[: len(found) // 2], found[len(found) // 2 :]))


@pytest.mark.parametrize("scheme", READ_UNITS)
def test_the_callers_ends_may_stop_and_start(scheme: str) -> None:
    """Chunks without ends fall back on the terminators; the unit that is open meanwhile goes on."""
    model, ids, ends = lively_model(scheme), random_ids(BATCH, SEQ), random_mask(0.3, 5)
    from_caller = (torch.arange(SEQ) < 7) | (torch.arange(SEQ) >= 15)
    torch.manual_seed(3)
    cache = model.new_cache(BATCH, max_tokens=SEQ)
    parts = [
        model(ids[:, span], cache=cache, ends=ends[:, span] if given_ends else None)
        for span, given_ends in ((slice(0, 7), True), (slice(7, 15), False), (slice(15, SEQ), True))
    ]
    whole = at_once(model, ids, ends=torch.where(from_caller, ends, ids == TERMINATOR))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=TOLERANCE)


@addressed
def test_marks_and_padding_may_begin_with_a_later_chunk(scheme: str) -> None:
    """A call without a mask says the same as one with a mask that marks nothing."""
    model, ids = lively_model(scheme), random_ids(BATCH, SEQ)
    memory, valid = random_mask(0.6, 1), padding("ragged")
    memory[:, :8], memory[:, 16:] = False, False
    valid[:, :8], valid[:, 16:] = True, True
    torch.manual_seed(3)
    cache = model.new_cache(BATCH)
    middle = {"memory": memory[:, 8:16], "valid": valid[:, 8:16]}
    spans: list[tuple[slice, Masks]] = [(slice(0, 8), {}), (slice(8, 16), middle), (slice(16, SEQ), {})]
    found = torch.cat([model(ids[:, span], cache=cache, **masks) for span, masks in spans], dim=1)
    torch.testing.assert_close(found, at_once(model, ids, memory=memory, valid=valid), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("scheme", ["random", "local"])
@pytest.mark.parametrize("kind", [None, "ragged"], ids=["no padding", "ragged"])
@pytest.mark.parametrize("options", [WINDOW, {**LEARNED, "window": 3}], ids=["fixed", "learned"])
@chunkings
def test_a_window_streams_at_other_addresses(
    scheme: str, sizes: Sequence[int], kind: str | None, options: dict[str, Any]
) -> None:
    masks = {"valid": padding(kind)} if kind else {}
    check_streams(lively_model(scheme, options=options), random_ids(BATCH, SEQ), sizes, **masks)


@pytest.mark.parametrize("scheme", ["content", WINDOWED, "rope", "alibi"])
@backends
def test_long_texts_stream_across_tiles(scheme: str, backend: str) -> None:
    model = lively_model(scheme, backend=backend, layers=2, max_unit_length=40)
    ids = random_ids(2, 150, end_rate=0.05)
    check_streams(model, ids, (100, 1, 30))


@backends
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.05, 0.2, 0.5, 1.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0, 0, 1, 2, 4, 7, 30]),
)
@example([2], 8, 0.05, True, True, 0.0, 1)  # padding in an open memory unit, first of a tile
def test_any_chunking_of_any_units_streams(
    backend: str,
    sizes: list[int],
    seed: int,
    end_rate: float,
    marked: bool,
    padded: bool,
    competition: float,
    window: int,
) -> None:
    ids = random_ids(2, 18, seed=seed)
    masks = {"ends": random_mask(end_rate, seed, (2, 18))}
    if marked:
        masks["memory"] = random_mask(0.5, seed + 1, (2, 18))
    if padded:
        masks["valid"] = random_mask(0.7, seed + 2, (2, 18))
    options = {"competition": competition, "window": window}
    check_streams(lively_model("content", backend=backend, layers=2, options=options), ids, sizes, **masks)


# --- GPU syncs ---


@pytest.mark.parametrize("scheme", KNOW_MEMORY)
@pytest.mark.parametrize("sizes", [(1,), (4, 1, 1, 7, 2, 1, 1, 1)], ids=["single", "mixed"])
def test_a_row_alone_of_which_it_is_known_where_its_units_began_streams(scheme: str, sizes: Sequence[int]) -> None:
    check_streams(lively_model(scheme), random_ids(1, SEQ), sizes)


class Asked(TorchDispatchMode):
    """How often a number is read back, besides the ids."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.times += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scheme", KNOW_MEMORY)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_token_that_ends_no_unit_is_known_by_its_id_alone(scheme: str, rows: int) -> None:
    model = lively_model(scheme, max_unit_length=50)
    ordinary = next(i for i in range(VOCABULARY) if i not in model.config.terminators)
    cache = model.new_cache(rows)
    model(torch.full((rows, 5), ordinary), cache=cache)
    model(torch.full((rows, 1), ordinary), cache=cache)  # where the open unit began is read back here
    times = []
    for token in (ordinary, model.config.terminators[0], ordinary, ordinary):
        with Asked() as asked:
            model(torch.full((rows, 1), token), cache=cache)
        times.append(asked.times)
    assert times[0] == times[3] == 0
    # Addresses are checked when a unit ends, or leaves the window as the next one begins: the count can see something.
    assert times[1] > 0 or scheme != "content"
    assert (times[2] > 0) is (scheme == WINDOWED)


@pytest.mark.parametrize("scheme", KNOW_MEMORY)
@pytest.mark.parametrize("rows", [1, 3])
def test_how_long_the_open_unit_is_is_asked_once_after_a_long_text(scheme: str, rows: int) -> None:
    model = lively_model(scheme, max_unit_length=50)
    ordinary = next(i for i in range(VOCABULARY) if i not in model.config.terminators)
    ids = torch.full((rows, 120), ordinary)  # the open unit has 20 tokens then
    cache = model.new_cache(rows)
    model(ids, cache=cache)
    times = []
    for _ in range(31):
        with Asked() as asked:
            model(ids[:, :1], cache=cache)
        times.append(asked.times)
    assert times[0] == 1
    assert not any(times[1:29])
    assert times[29] > 0  # the longest there may be: the count can see something


@pytest.mark.parametrize("prompt", [0, 7])
def test_a_unit_that_is_known_to_be_completed_whole_is_read_as_any_other(
    prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, and so is the cache."""
    model, ids = lively_model("content", max_unit_length=6), random_ids(1, 40)
    whole = []
    known = Reading.completes_all
    found = []
    for complete in (lambda *given: whole.append(known(*given)) or whole[-1], lambda *given: False):
        monkeypatch.setattr(Reading, "completes_all", complete)
        cache = model.new_cache(1)
        if prompt:
            model(ids[:, :prompt], cache=cache)
        logits = [model(ids[:, t : t + 1], cache=cache) for t in range(prompt, 40)]
        facts = [cache.fact(name) for name in Facts._fields]
        found.append([*logits, cache.columns.angles[0][:, :40], *facts, *cache.keys])
    assert sum(whole) >= 5, "this way was hardly taken"
    for ours, general in zip(*found, strict=True):
        assert torch.equal(ours, general)


def test_padding_within_an_open_unit_is_no_part_of_it_when_it_is_completed() -> None:
    model, ids = lively_model("content"), torch.tensor([[3, 4, 5, TERMINATOR, 6]])
    cache = model.new_cache(1)
    model(torch.tensor([[3, 9, 4]]), valid=torch.tensor([[True, False, True]]), cache=cache)
    read = [model(ids[:, t : t + 1], cache=cache) for t in range(2, 5)]
    torch.testing.assert_close(torch.cat(read, dim=1), model(ids)[:, 2:], rtol=0, atol=1e-10)


# --- bfloat16 ---


def root_mean_square(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize(
    ("scheme", "competition"), [*((name, 0.0) for name in VARIANTS), *((name, 1.0) for name in KNOW_MEMORY)]
)
@pytest.mark.parametrize("sizes", [(1,), (4, 1, 1, 7, 2)], ids=["single", "mixed"])
def test_streaming_costs_no_accuracy_in_bfloat16(scheme: str, competition: float, sizes: Sequence[int]) -> None:
    """The budget is what bfloat16 costs a reader of the whole text, measured against float64."""
    options = {"competition": competition} if competition else {}
    rounded = lively_model(scheme, dtype=torch.bfloat16, options=options)
    exact = copy.deepcopy(rounded).double()
    ids = random_ids(BATCH, 60)
    expected = at_once(exact, ids)
    parallel_error = root_mean_square(at_once(rounded, ids) - expected)
    streaming_error = root_mean_square(streamed(rounded, ids, sizes) - expected)
    assert parallel_error > 1e-3
    assert streaming_error <= 1.5 * parallel_error + 1e-6
