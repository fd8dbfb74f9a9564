"""What a model uses of the past is measured right for models whose use of it is known."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from contentrope.errors import InputError
from contentrope.evaluation.distant import (
    CONDITIONS,
    change_pasts,
    doubling_edges,
    perplexity_by_position,
    perplexity_with_changed_past,
)
from contentrope.evaluation.perplexity import perplexity
from tests.support import TERMINATOR, VOCABULARY, lively_model, random_ids

END = {TERMINATOR}
TEXT = random_ids(1, 600, seed=1)[0]
OTHER = random_ids(1, 500, seed=2)[0]
MARKER = VOCABULARY - 1


class Stub(nn.Module):
    """Says how much of the past it uses by what it looks up."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64))


class PreviousToken(Stub):
    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]


class FirstToken(Stub):
    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids[:, :1]].expand(-1, ids.shape[1], -1)


class SeenBefore(Stub):
    """Expects the tokens that occurred so far, in whatever order."""

    def forward(self, ids: Tensor) -> Tensor:
        seen = nn.functional.one_hot(ids, VOCABULARY).cumsum(1) > 0
        return seen.to(self.table.dtype) * 3


class MeanSoFar(Stub):
    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids].cumsum(1) / torch.arange(1, ids.shape[1] + 1).unsqueeze(-1)


def measure(model: nn.Module, data: Tensor = TEXT, length: int = 50, near: int = 12, **more: Any) -> dict[str, Any]:
    more = {"terminators": END, "elsewhere": OTHER, **more}
    return perplexity_with_changed_past(model, data, length, near=near, **more)


def by_condition(model: nn.Module, *args: Any, **more: Any) -> dict[str, float]:
    return measure(model, *args, **more)["perplexity"]


def one_window(*units: list[int]) -> Tensor:
    """Units as one row; the last token is only a target."""
    return torch.tensor([token for unit in units for token in unit])


def units_in(tokens: list[int]) -> list[tuple[int, ...]]:
    units, begin = [], 0
    for place, token in enumerate(tokens):
        if token == TERMINATOR:
            units.append(tuple(tokens[begin : place + 1]))
            begin = place + 1
    assert begin == len(tokens), "ends in the middle of a unit"
    return units


# --- by position -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [60, 100, 7, 1])
@pytest.mark.parametrize("batch_tokens", [1, 130, 10_000])
def test_bins_together_are_the_perplexity(length: int, batch_tokens: int) -> None:
    found = perplexity_by_position(MeanSoFar(), TEXT, length, max_tokens=400, batch_tokens=batch_tokens)
    losses = [tokens * math.log(value) for tokens, value in zip(found["tokens"], found["perplexity"], strict=True)]
    together = math.exp(math.fsum(losses) / sum(found["tokens"]))
    assert together == pytest.approx(perplexity(MeanSoFar(), TEXT, length, max_tokens=400), rel=1e-12)
    assert sum(found["tokens"]) == 400 // length * length
    assert json.loads(json.dumps(found)) == found


@torch.no_grad()
def test_each_bin_holds_its_own_positions() -> None:
    model, edges = MeanSoFar(), [0, 16, 20]
    found = perplexity_by_position(model, TEXT, 20, max_tokens=100)
    assert (found["length"], found["edges"], found["tokens"]) == (20, edges, [80, 20])
    for (begin, end), value in zip(pairwise(edges), found["perplexity"], strict=True):
        losses = []
        for start in range(0, 100, 20):
            for place in range(start + begin, start + end):
                probabilities = model(TEXT[None, start : place + 1])[0, -1].softmax(-1)
                losses.append(-math.log(probabilities[TEXT[place + 1]]))
        assert value == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=1e-12)


def test_use_of_the_past_shows_in_later_bins() -> None:
    """Five tokens again and again, in random order: after each has come once, there is no more to learn."""
    data = torch.cat([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(201)])
    falling = perplexity_by_position(SeenBefore(), data, 50)["perplexity"]
    assert falling[0] > falling[1] > 4.9
    assert falling[1:] == pytest.approx([falling[1]] * 2, rel=1e-12)


def test_default_bins_double() -> None:
    assert doubling_edges(4096) == [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert [doubling_edges(length) for length in (1, 16, 17, 40)] == [[0, 1], [0, 16], [0, 16, 17], [0, 16, 32, 40]]


# --- models whose use of the past is known ---------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 170, 10_000])
def test_a_model_without_memory_makes_no_difference(batch_tokens: int) -> None:
    """Equal to the last bit: the same tokens are scored, in all conditions."""
    found = by_condition(PreviousToken(), batch_tokens=batch_tokens)
    assert list(found) == list(CONDITIONS)
    assert len(set(found.values())) == 1


@torch.no_grad()
def test_the_scored_tokens_are_those_of_the_last_whole_units() -> None:
    model, losses, skipped = PreviousToken(), [], 0
    for start in range(0, 550, 50):
        window = TEXT[start : start + 51].tolist()
        unit_starts = [place for place in range(1, 50 - 12 + 1) if window[place - 1] == TERMINATOR]
        skipped += not unit_starts
        for place in range(unit_starts[-1], 50) if unit_starts else ():
            losses.append(-math.log(model.table[window[place]].softmax(-1)[window[place + 1]]))
    found = measure(model)
    assert (found["length"], found["near"], found["scored"]) == (50, 12, len(losses))
    assert (found["windows"], found["skipped"]) == (11 - skipped, skipped)
    assert found["perplexity"]["as written"] == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=1e-12)


def test_a_model_that_looks_back_for_tokens() -> None:
    """6 and 7 occur in the distant part alone, and not elsewhere; their order there does not matter."""
    data = one_window([6, 0], [4, 0], [7, 0], [5, 0], [6, 7, 6])
    elsewhere = one_window([1, 2, 3, 0], [4, 5, 1, 0], [3, 2, 1, 0])
    found = by_condition(SeenBefore(), data, 10, 2, elsewhere=elsewhere)
    assert found["as written"] == found["shuffled"] < min(found["deleted"], found["replaced"])
    assert found["deleted"] != found["replaced"]


def test_a_model_that_looks_at_the_order_of_units() -> None:
    several = one_window([1, 0], [2, 0], [3, 0], [4, 0], [5, 0], [6, 7, 6])
    # By seed: what the first unit became decides, and nothing else.
    found = [by_condition(FirstToken(), several, 12, 2, seed=seed) for seed in range(40)]
    assert len({values["as written"] for values in found}) == len({values["deleted"] for values in found}) == 1
    assert len({values["shuffled"] for values in found}) == 5
    assert found[0]["as written"] in {values["shuffled"] for values in found}
    assert len({values["replaced"] for values in found}) > 1


@pytest.mark.parametrize("past", [[[1, 2, 3, 0]], [[1, 0], [1, 0], [1, 0]]], ids=["one unit", "equal units"])
def test_shuffling_needs_different_units(past: list[list[int]]) -> None:
    data = one_window(*past, [6, 7, 6])
    found = by_condition(FirstToken(), data, len(data) - 1, 2)
    assert found["shuffled"] == found["as written"] != found["deleted"]


# --- real models -----------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["content", "local", "bipe", "rope", "alibi", "nope"])
@pytest.mark.parametrize("batch_tokens", [1, 10_000])
def test_rows_of_unequal_length_are_read_as_if_alone(scheme: str, batch_tokens: int) -> None:
    model = lively_model(scheme)
    windows = TEXT[:551].unfold(0, 51, 50)
    changed = change_pasts(windows, near=12, terminators=END, elsewhere=OTHER, seed=3)
    assert len({window.scored for window in changed}) > 2
    found = by_condition(model, seed=3, batch_tokens=batch_tokens)
    for condition, value in found.items():
        losses = []
        for window in changed:
            text = window.texts[condition]
            log_probabilities = model(text[None, :-1])[0].log_softmax(-1)
            losses += log_probabilities.gather(1, text[1:, None])[-window.scored :].flatten().neg().tolist()
        assert value == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=1e-10), condition
    assert len(set(found.values())) == 4


def windows_with_a_question() -> Tensor:
    """Windows of 40: ten facts of 3 tokens, then a question of 10 that begins with the marker."""
    facts = torch.randint(1, MARKER, (7, 30), generator=torch.Generator().manual_seed(4))
    facts[:, 2::3] = TERMINATOR
    question = torch.randint(1, MARKER, (7, 10), generator=torch.Generator().manual_seed(5))
    question[:, 0] = MARKER
    return torch.cat([facts, question], 1).flatten()


def test_the_order_of_memory_units_makes_no_difference() -> None:
    data = windows_with_a_question()
    memory = by_condition(lively_model("content", reader=(MARKER,)), data, 40, 10)
    assert memory["shuffled"] == pytest.approx(memory["as written"], rel=1e-12)
    assert memory["deleted"] != pytest.approx(memory["as written"], rel=1e-3)
    # The replacing text may hold the marker, but facts of its own in any case.
    assert memory["replaced"] != pytest.approx(memory["as written"], rel=1e-3)
    ordinary = by_condition(lively_model("content"), data, 40, 10)
    assert ordinary["shuffled"] != pytest.approx(ordinary["as written"], rel=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scheme", ["content", "rope"])
def test_a_gpu_gives_the_same(scheme: str) -> None:
    model = lively_model(scheme, dtype=torch.float32, dim=64)
    on_cpu = measure(model)
    on_gpu = measure(model.cuda(), TEXT.cuda(), elsewhere=OTHER.cuda())
    assert on_gpu.pop("perplexity") == pytest.approx(on_cpu.pop("perplexity"), rel=1e-3)
    assert on_gpu == on_cpu


# --- the changed texts -----------------------------------------------------------------------------------------

rows = st.lists(st.integers(0, 4), min_size=3, max_size=40)
other_texts = st.lists(st.integers(5, 9), min_size=40, max_size=60).map(lambda tokens: [*tokens, TERMINATOR])


@given(row=rows, near=st.integers(1, 20), other=other_texts, seed=st.integers(0, 2**40))
def test_only_the_past_is_changed(row: list[int], near: int, other: list[int], seed: int) -> None:
    length = len(row) - 1
    assume(TERMINATOR in row[: max(0, length - near)])
    elsewhere = torch.tensor([*other, *reversed(other)])
    (found,) = change_pasts(torch.tensor([row]), near=near, terminators=END, elsewhere=elsewhere, seed=seed)
    texts = {name: text.tolist() for name, text in found.texts.items()}
    begin = length - found.scored
    distant, recent = row[:begin], row[begin:]
    assert distant[-1] == TERMINATOR
    assert found.scored >= near
    assert TERMINATOR not in row[begin : length - near], "fewer units would hold enough"
    assert texts["as written"] == row
    assert texts["deleted"] == recent
    for name in ("shuffled", "replaced"):
        assert texts[name][begin:] == recent
        assert len(texts[name]) == len(row)
    assert Counter(units_in(texts["shuffled"][:begin])) == Counter(units_in(distant))
    replacing = texts["replaced"][:begin]
    assert replacing[-1] == TERMINATOR
    assert replacing in elsewhere.unfold(0, begin, 1).tolist()


def test_every_place_and_every_order_can_come_up() -> None:
    window = one_window([1, 0], [2, 0], [3, 0], [4, 5, 6])[None]
    elsewhere = one_window([7, 0], [7, 7, 7, 0], [8, 0], [9, 9, 0])
    orders, places = set(), set()
    for seed in range(100):
        (found,) = change_pasts(window, near=2, terminators=END, elsewhere=elsewhere, seed=seed)
        orders.add(tuple(found.texts["shuffled"][:6:2].tolist()))
        places.add(tuple(found.texts["replaced"][:6].tolist()))
    assert len(orders) == 6
    assert places == {(7, 0, 7, 7, 7, 0), (7, 7, 7, 0, 8, 0), (0, 8, 0, 9, 9, 0)}


def test_windows_without_a_distant_part_are_skipped() -> None:
    with_past, without = [1, 0, 2, 3, 4, 5], [1, 2, 3, 4, 0, 5]
    data = torch.tensor([*with_past, *without, *with_past, 1])
    found = measure(PreviousToken(), data, 6, 3)
    assert (found["windows"], found["skipped"], found["scored"]) == (2, 1, 8)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_any_integers_will_do(dtype: torch.dtype) -> None:
    assert measure(MeanSoFar(), TEXT.to(dtype), elsewhere=OTHER.to(dtype)) == measure(MeanSoFar())
    assert measure(MeanSoFar(), TEXT.to(dtype)) == measure(MeanSoFar())


def test_several_terminators() -> None:
    found = measure(PreviousToken(), terminators=[3, TERMINATOR, 3])
    assert found["scored"] < measure(PreviousToken())["scored"]


# --- repeatable ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["content", "random", "randomized"])
def test_the_seed_decides(scheme: str) -> None:
    model = lively_model(scheme)
    torch.manual_seed(1)
    first = measure(model, seed=7)
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    assert measure(model, seed=7) == first
    assert torch.equal(torch.random.get_rng_state(), before)
    other = measure(model, seed=8)["perplexity"]
    assert other["shuffled"] != first["perplexity"]["shuffled"]
    assert other["replaced"] != first["perplexity"]["replaced"]
    assert (other["as written"] == first["perplexity"]["as written"]) == (scheme == "content")
    assert json.loads(json.dumps(first)) == first


def test_fewer_tokens_are_the_first_windows_unchanged() -> None:
    assert measure(MeanSoFar(), max_tokens=249) == measure(MeanSoFar(), TEXT[:201])


def test_the_model_is_left_as_it_was() -> None:
    model = lively_model("content", dropout=0.5)
    quiet = measure(model)
    model.train()
    assert measure(model) == quiet
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"near": 0}, "near 0, .* must be from 1 to less than length 50"),
        ({"near": 50}, "near 50, .* must be from 1 to less than length 50"),
        ({"length": 600}, "no window of length 600 fits.*give more text"),
        ({"max_tokens": 49}, "max_tokens is 49; give more text"),
        ({"terminators": []}, "terminators are empty: give the token ids"),
        ({"terminators": [99]}, r"first 38 tokens of any of the 11 windows.*check terminators \[99\], lower near \(12"),
        ({"elsewhere": OTHER[:20]}, "elsewhere is too short: no unit ends at or after .* of its 20; give a longer"),
        ({"elsewhere": torch.ones(500, dtype=torch.int64)}, "elsewhere is too short.*500; .*the same terminators"),
        ({"elsewhere": OTHER[None]}, r"elsewhere has shape \(1, 500\): pass"),
        ({"data": TEXT[None]}, r"data has shape \(1, 600\): pass"),
    ],
)
def test_bad_input_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure(PreviousToken(), **wrong)
