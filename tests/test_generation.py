"""Generation against forwards without a cache, and sampling against the distribution it is meant to draw from."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope import schemes
from contentrope.generation import Generated, generate_stream, keep_likely
from tests.support import DRAW_AT_RANDOM, TERMINATOR, VOCABULARY, lively_model, random_ids

REPEATABLE = sorted(set(schemes.names()) - set(DRAW_AT_RANDOM))
PROMPT_LENGTHS = (7, 1, 4)


def greedy_without_cache(model: cr.Transformer, ids: Tensor, count: int) -> Tensor:
    for _ in range(count):
        ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("scheme", REPEATABLE)
def test_greedy_is_the_argmax_of_whole_forwards(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(3, 6)
    found = cr.generate(model, ids, 25, temperature=0)
    assert torch.equal(found.ids, greedy_without_cache(model, ids, 25))
    assert found.valid.all()
    assert len(found.ids[:, 6:].unique()) > 3, "a model that repeats itself would hide a mistake"


@pytest.mark.parametrize("scheme", DRAW_AT_RANDOM)
def test_schemes_that_draw_at_random_generate_too(scheme: str) -> None:
    assert cr.generate(lively_model(scheme), random_ids(2, 6), 12, temperature=0).ids.shape == (2, 18)


def left_padded(prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(len(p) for p in prompts)
    ids = torch.stack([torch.cat((torch.full((longest - len(p),), 5), p)) for p in prompts])
    valid = torch.stack([torch.arange(longest) >= longest - len(p) for p in prompts])
    return ids, valid


@pytest.mark.parametrize("scheme", REPEATABLE)
def test_a_prompt_continues_in_a_padded_batch_as_it_does_alone(scheme: str) -> None:
    model = lively_model(scheme)
    prompts = [random_ids(1, length, seed=length)[0] for length in PROMPT_LENGTHS]
    ids, valid = left_padded(prompts)
    together = cr.generate(model, ids, 20, valid=valid, temperature=0)
    assert torch.equal(together.valid[:, :7], valid)
    for row, prompt in enumerate(prompts):
        alone = cr.generate(model, prompt[None], 20, temperature=0).ids[0]
        assert torch.equal(together.ids[row, 7 - len(prompt) :], alone)


# --- where rows stop -------------------------------------------------------------------------------------------


def talkative_model(scheme: str = "content") -> cr.Transformer:
    """Ends its units after some tokens, not at once and not never."""
    model = lively_model(scheme, seed=3, max_unit_length=64)
    with torch.no_grad():
        model.head.bias[TERMINATOR] += 1.0
    return model


@pytest.mark.parametrize("scheme", ["content", "rope", "bipe"])
def test_each_row_stops_at_the_end_of_its_unit(scheme: str) -> None:
    model, ids = talkative_model(scheme), random_ids(8, 5, seed=2)
    endless = cr.generate(model, ids, 30, temperature=0).ids
    found = cr.generate(model, ids, 30, temperature=0, stop_at_unit_end=True)
    lengths = []
    for row in range(8):
        ends = (endless[row, 5:] == TERMINATOR).nonzero()
        length = int(ends[0]) + 1 if len(ends) else 30
        lengths.append(length)
        assert torch.equal(found.ids[row, : 5 + length], endless[row, : 5 + length])
        assert found.valid[row, : 5 + length].all()
        assert not found.valid[row, 5 + length :].any()
        assert not found.ids[row, 5 + length :].any()
    assert found.ids.shape == found.valid.shape == (8, 5 + max(lengths))
    assert len(set(lengths)) > 2, "rows that all stop together would hide a mistake"


def test_generation_is_over_when_all_rows_have_stopped() -> None:
    model = talkative_model()
    with torch.no_grad():
        model.head.bias[TERMINATOR] = 1e3
    assert cr.generate(model, random_ids(3, 5), 30, stop_at_unit_end=True).ids.shape == (3, 6)


def test_a_prompt_that_ends_a_unit_does_not_stop_its_row() -> None:
    ids = torch.tensor([[4, 5, TERMINATOR]])
    assert cr.generate(talkative_model(), ids, 5, temperature=0, stop_at_unit_end=True).valid[0, 3]


# --- sampling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, VOCABULARY),
        ({"temperature": 0.5}, VOCABULARY),
        ({"temperature": 3.0}, VOCABULARY),
        ({"top_k": 3}, 3),
        ({"top_p": 0.7}, None),
        ({"temperature": 2.0, "top_k": 6, "top_p": 0.8}, None),
    ],
    ids=["plain", "colder", "hotter", "top-k", "top-p", "all"],
)
def test_tokens_are_drawn_from_the_distribution(settings: dict[str, Any], kept: int | None) -> None:
    model, draws = lively_model("content", layers=1), 20_000
    prompt = torch.tensor([[3, 4, 0, 5]])
    logits = model(prompt)[0, -1].tolist()
    expected = distribution_by_hand(logits, **settings)
    assert kept is None or sum(p > 0 for p in expected) == kept
    drawn = cr.generate(model, prompt.expand(draws, -1), 1, generator=seeded(1), **settings).ids[:, -1]
    counts = torch.bincount(drawn, minlength=VOCABULARY).tolist()
    for count, probability in zip(counts, expected, strict=True):
        # Five standard deviations of a binomial count.
        assert abs(count - draws * probability) <= 5 * (draws * probability * (1 - probability)) ** 0.5


def distribution_by_hand(
    logits: list[float], temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> list[float]:
    weights = {i: torch.tensor(x / temperature, dtype=torch.float64).exp().item() for i, x in enumerate(logits)}
    likeliest = sorted(weights, key=lambda i: -weights[i])[: top_k or len(logits)]
    total = sum(weights[i] for i in likeliest)
    kept: list[int] = []
    while likeliest and (top_p is None or sum(weights[i] for i in kept) < top_p * total):
        kept.append(likeliest.pop(0))
    mass = sum(weights[i] for i in kept)
    return [weights[i] / mass if i in kept else 0.0 for i in range(len(logits))]


@given(
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any),
    top_k=st.none() | st.integers(1, 14),
    share=st.none() | st.floats(0, 1, exclude_max=True),
)
def test_the_smallest_likely_set_is_kept(weights: list[int], top_k: int | None, share: float | None) -> None:
    in_order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    in_order = in_order[: top_k or len(weights)]
    total = sum(weights[i] for i in in_order)
    # Between two whole numbers, so that rounding cannot decide whether the mass is reached.
    needed = None if share is None else int(share * total) + 0.5
    expected, mass = set(), 0
    for i in in_order:
        if needed is not None and mass >= needed:
            break
        expected.add(i)
        mass += weights[i]
    probability = torch.tensor([weights], dtype=torch.float64) / sum(weights)
    found = keep_likely(probability, top_k, None if needed is None else needed / total)
    for i in range(len(weights)):
        assert found[0, i] == (probability[0, i] if i in expected else 0.0)


@given(
    logits=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
)
def test_the_likeliest_token_is_always_kept(logits: list[float], top_k: int | None, top_p: float | None) -> None:
    probability = torch.tensor([logits], dtype=torch.float64).softmax(-1)
    found = keep_likely(probability, top_k, top_p)
    first = probability.argmax(-1).item()
    assert found[0, first] == probability[0, first] > 0
    assert ((found == 0) | (found == probability)).all()


def test_mass_that_is_reached_exactly_is_enough() -> None:
    probability = torch.tensor([[0.25, 0.5, 0.125, 0.125]])
    assert keep_likely(probability, None, 0.5).tolist() == [[0.0, 0.5, 0.0, 0.0]]
    assert keep_likely(probability, None, 0.75).tolist() == [[0.25, 0.5, 0.0, 0.0]]
    assert keep_likely(probability, None, 1.0).tolist() == probability.tolist()
    assert keep_likely(probability, 3, None).tolist() == [[0.25, 0.5, 0.125, 0.0]]


def test_rows_are_cut_independently() -> None:
    probability = torch.tensor([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4]])
    assert (keep_likely(probability, None, 0.5) > 0).tolist() == [[True, False, False], [True, False, True]]


def test_the_generator_alone_decides_what_is_drawn() -> None:
    model, ids = lively_model("content"), random_ids(4, 5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = cr.generate(model, ids, 20, generator=seeded(5)).ids
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(cr.generate(model, ids, 20, generator=seeded(5)).ids, first)
    assert not torch.equal(cr.generate(model, ids, 20, generator=seeded(6)).ids, first)


# --- the model is left as it was -------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored_and_plays_no_part(training: bool) -> None:
    model, ids = lively_model("content", dropout=0.5), random_ids(2, 5)
    expected = cr.generate(model, ids, 10, temperature=0).ids
    model.train(training)
    assert torch.equal(cr.generate(model, ids, 10, temperature=0).ids, expected)
    assert model.training == training
    assert all(block.training == training for block in model.blocks)


def test_training_mode_is_restored_after_a_failure() -> None:
    model = lively_model("content").train()
    with pytest.raises(cr.InputError, match="id 11 lies outside"):
        cr.generate(model, torch.tensor([[VOCABULARY]]), 3)
    assert model.training


def test_generation_records_no_gradients() -> None:
    model, seen = lively_model("content"), []
    model.head.register_forward_hook(lambda _module, _inputs, out: seen.append(out.requires_grad))
    cr.generate(model, random_ids(1, 3), 2)
    assert seen == [False, False]


# --- edges -----------------------------------------------------------------------------------------------------


def test_no_new_tokens_gives_the_prompt() -> None:
    ids = random_ids(2, 5)
    found = cr.generate(lively_model("content"), ids, 0)
    assert isinstance(found, Generated)
    assert torch.equal(found.ids, ids)
    assert found.valid.all()


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.0}, {"stop_at_unit_end": True}])
def test_no_rows_give_no_rows(settings: dict[str, Any]) -> None:
    found = cr.generate(lively_model("content"), torch.zeros(0, 4, dtype=torch.int64), 3, **settings)
    assert found.ids.shape[0] == found.valid.shape[0] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ids": torch.zeros(2, 0, dtype=torch.int64)}, "ids must be (batch, at least 1), got (2, 0)"),
        ({"ids": torch.tensor([1, 2])}, "ids must be (batch, at least 1), got (2,)"),
        (
            {"valid": torch.tensor([[True, True, False]])},
            "pad prompts on the left: the last column of valid must be True",
        ),
        ({"valid": torch.tensor([[True, True]])}, "valid has shape (1, 2), the tokens (1, 3)"),
        ({"max_new_tokens": -1}, "max_new_tokens -1 and temperature 1.0 must be 0 or more"),
        ({"temperature": -0.5}, "max_new_tokens 4 and temperature -0.5 must be 0 or more"),
        ({"temperature": float("nan")}, "temperature nan must be 0 or more"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be in (0, 1], got 0.0"),
        ({"top_p": 1.1}, "top_p must be in (0, 1], got 1.1"),
        ({"top_p": float("nan")}, "top_p must be in (0, 1], got nan"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    given_settings = {"ids": torch.tensor([[1, 2, 3]]), "max_new_tokens": 4, **settings}
    with pytest.raises(cr.InputError, match=re.escape(message)):
        cr.generate(lively_model("content"), **given_settings)


# --- as a stream -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_k": 3}, {"stop_at_unit_end": True}])
def test_a_stream_gives_the_columns_of_generate_one_by_one(settings: dict[str, Any]) -> None:
    model = talkative_model()
    prompts = [random_ids(1, length, seed=length)[0] for length in PROMPT_LENGTHS]
    ids, valid = left_padded(prompts)
    whole = cr.generate(model, ids, 25, valid=valid, generator=seeded(4), **settings)
    columns = list(generate_stream(model, ids, 25, valid=valid, generator=seeded(4), **settings))
    assert torch.equal(torch.cat([ids, *(column.ids for column in columns)], dim=1), whole.ids)
    assert torch.equal(torch.cat([valid, *(column.valid for column in columns)], dim=1), whole.valid)


def test_a_stream_computes_no_further_than_it_is_read() -> None:
    model, calls = lively_model("content"), []
    model.head.register_forward_hook(lambda _module, inputs, _out: calls.append(inputs[0].shape[1]))
    stream = generate_stream(model, random_ids(1, 6), 25)
    assert calls == []
    next(stream)
    assert calls == [6]
    next(stream)
    assert calls == [6, 1]


def test_a_stream_that_is_given_up_leaves_the_model_and_gradients_as_they_were() -> None:
    model = lively_model("content").train()
    stream = generate_stream(model, random_ids(1, 6), 25)
    column = next(stream)
    assert torch.is_grad_enabled()
    assert not column.ids.requires_grad
    stream.close()  # type: ignore[attr-defined]
    assert model.training


def test_a_stream_is_refused_when_it_is_asked_for() -> None:
    with pytest.raises(cr.InputError, match="top_k must be at least 1"):
        generate_stream(lively_model("content"), random_ids(1, 3), 4, top_k=0)
