"""A question over stored units has the logits of the model that reads these units at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import contentrope as cr
import contentrope.hf as chf
from contentrope.store import UnitStore
from tests.hf.models import ARCHITECTURES, TERMINATOR, WINDOWED, enliven, logits, padded_dtype, random_ids, tiny
from tests.store.helpers import DOCUMENTS, LONG, QUESTION, asked, model_for, read_at_once, units_in

IN_FLOAT32 = ("gemma2", "gemma3", "gpt_oss", "cohere2", "gemma4, shared keys")
"""Compute norms or softmax in float32, whatever their dtype."""


def close(name: str, found: Tensor, expected: Tensor, dtype: torch.dtype = torch.float64) -> None:
    exact = dtype == torch.float64 and name not in IN_FLOAT32
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if exact else 1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("window", [0, 6])
def test_a_question_over_stored_units_equals_reading_them_at_once(name: str, window: int, tmp_path: Path) -> None:
    if window and name not in WINDOWED:
        pytest.skip("its frequencies change with the length of the text")
    model = model_for(name, window=window)
    store = UnitStore(tmp_path, model)
    keys = store.add([*DOCUMENTS, LONG])
    units = units_in(store, keys)
    expected = read_at_once(model, units)
    for sizes in ((99,), (4, 1)):
        close(name, asked(model, store.cache(keys), sizes=sizes), expected)
    assert float((read_at_once(model, units[:-1]) - expected).abs().max()) > 1e-4


@pytest.mark.parametrize("window", [0, 6])
def test_in_single_precision(window: int, tmp_path: Path) -> None:
    model = model_for(window=window, dtype=torch.float32)
    store = UnitStore(tmp_path, model)
    keys = store.add([*DOCUMENTS, LONG])
    close("llama", asked(model, store.cache(keys)), read_at_once(model, units_in(store, keys)), torch.float32)


@pytest.mark.parametrize("window", [0, 6])
def test_a_model_with_a_reader_reads_as_behind_its_marker(window: int, tmp_path: Path) -> None:
    """By one call of the model, without any mark but its own; and documents may hold the marker."""
    model = tiny("llama")
    chf.attach(model, units={TERMINATOR}, max_length=7, window=window, competition=0.5, reader=[5], check=False)
    store = UnitStore(tmp_path, enliven(model))
    keys = store.add(DOCUMENTS)
    units, question = units_in(store, keys), torch.cat((torch.tensor([[5]]), QUESTION), dim=1)
    ids = torch.cat((torch.tensor([[number for unit in units for number in unit]]), question), dim=1)
    ends = ids == TERMINATOR
    ends[0, : ids.shape[1] - question.shape[1]] = False
    ends[0, torch.tensor([len(unit) for unit in units]).cumsum(0) - 1] = True
    at_once = logits(model, ids, unit_ends=ends, use_cache=False)[:, -question.shape[1] :]
    close("llama", asked(model, store.cache(keys), question), at_once)
    with_marker = store.add([[5, 9, TERMINATOR]])
    close("llama", asked(model, store.cache(with_marker)), read_at_once(model, [[5, 9, TERMINATOR]]))


def test_decoding_goes_on_as_after_reading_at_once(tmp_path: Path) -> None:
    """Greedily, sampled with beams, and by a guess that is rolled back."""
    model = model_for(dtype=torch.float32)
    model.generation_config.eos_token_id = None
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    units = units_in(store, keys)
    inputs = store.ask(QUESTION, keys)
    begin = inputs["input_ids"].shape[1]
    written = model.generate(**inputs, max_new_tokens=12, do_sample=False)[:, begin:]
    read = torch.cat((QUESTION, written), dim=1)
    likeliest = read_at_once(model, units, read)[:, QUESTION.shape[1] - 1 : -1].argmax(-1)
    assert torch.equal(likeliest, written)
    for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model_for(dtype=torch.float32, seed=0)}):
        guessed = model.generate(**store.ask(QUESTION, keys), max_new_tokens=12, do_sample=False, **options)
        assert torch.equal(guessed[:, begin:], written)
    beams = model.generate(**store.ask(QUESTION, keys), max_new_tokens=6, num_beams=3, do_sample=False)
    assert float(_likelihood(model, units, beams[:, begin:])) >= float(_likelihood(model, units, written[:, :6])) - 1e-4


def _likelihood(model: Any, units: list[list[int]], written: Tensor) -> Tensor:
    found = read_at_once(model, units, torch.cat((QUESTION, written), dim=1))[:, QUESTION.shape[1] - 1 : -1]
    return found.log_softmax(-1).gather(2, written[..., None]).sum()


@pytest.mark.parametrize("name", ["llama", "smollm3", "gemma3"])
@pytest.mark.parametrize("window", [0, 6])
def test_rows_of_different_sets_and_questions(name: str, window: int, tmp_path: Path) -> None:
    model = model_for(name, window=window, dtype=padded_dtype(name))
    store = UnitStore(tmp_path, model)
    keys = store.add([*DOCUMENTS, LONG])
    sets = [keys[:2], [keys[5], keys[0]], []]
    questions = [[40, 41, TERMINATOR, 42], [50], [43, TERMINATOR]]
    if name == "gemma3":
        with pytest.raises(cr.InputError, match="one length"):
            _inputs(store, questions, sets)
        questions = [[*question, 9, 9, 9][:4] for question in questions]
    inputs = _inputs(store, questions, sets)
    with torch.no_grad():
        together = model(**inputs).logits[:, -1]
    for row, (question, documents) in enumerate(zip(questions, sets, strict=True)):
        alone = asked(model, store.cache(documents), torch.tensor([question]))[:, -1]
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=2e-5 if name in IN_FLOAT32 else 1e-12)
    if window:  # rows that are reordered keep their places in the window
        inputs["past_key_values"].batch_select_indices(torch.tensor([1]))
        inputs["past_key_values"].rewind()
        again = asked(model, inputs["past_key_values"], torch.tensor([[9]]))
        assert again.shape == (1, 1, 64)


def _inputs(store: UnitStore, questions: list[list[int]], sets: list[list[str]]) -> dict[str, Any]:
    """As ``generate`` hands them on in assisted decoding: with what is read already."""
    inputs = store.ask(questions, sets)
    return {**inputs, "position_ids": (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)}


def test_a_question_may_begin_as_the_set_does(tmp_path: Path) -> None:
    """Only a call that passes the whole text, by its mask, is taken to repeat the set."""
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add([[30]])
    question = torch.tensor([[30, 41, 42]])
    expected = read_at_once(model, [[30]], question)
    close("llama", asked(model, store.cache(keys), question), expected)
    with torch.no_grad():
        masked = model(question, attention_mask=torch.ones(1, 4), past_key_values=store.cache(keys)).logits
        whole = model(**store.ask(question, keys)).logits
    close("llama", masked, expected)
    close("llama", whole, expected)


def test_no_documents_are_a_set_too(tmp_path: Path) -> None:
    for window in (0, 6):
        model = model_for(window=window)
        store = UnitStore(tmp_path / str(window), model)
        cache = store.cache([])
        close("llama", asked(model, cache), logits(model, QUESTION))
        cache.rewind()
        cache.insert(store.add(DOCUMENTS))
        close("llama", asked(model, cache), read_at_once(model, units_in(store, cache.documents)))


def test_a_rolled_back_question_is_as_if_never_read(tmp_path: Path) -> None:
    for name in ("llama", "gemma3"):
        for window in (0, 6):
            model = model_for(name, window=window)
            store = UnitStore(tmp_path / f"{name}{window}", model)
            keys = store.add(DOCUMENTS)
            expected = asked(model, store.cache(keys))
            for kept in (0, 1, 3, 7):
                cache = store.cache(keys)
                cache.activate_past_recording()
                asked(model, cache, torch.cat((QUESTION[:, :kept], random_ids(1, 9, seed=5)), dim=1))
                cache.crop(-9)
                close(name, asked(model, cache, QUESTION[:, kept:]), expected[:, kept:])
                with pytest.raises(cr.CacheError, match="stored units"):
                    cache.crop(-QUESTION.shape[1] - 1)


def test_a_copy_of_a_cache_goes_its_own_way(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    cache = store.cache(keys)
    expected, other = asked(model, store.cache(keys)), copy.deepcopy(cache)
    other.remove(keys[0])
    assert not torch.equal(asked(model, other), expected)
    assert torch.equal(asked(model, cache), expected)


# --- marks of the caller's, by which units are computed ---


@pytest.mark.parametrize("window", [0, 6])
def test_units_marked_by_a_call_equal_those_before_a_reader(window: int) -> None:
    from contentrope.units import Terminators, segment

    plain, marked = (tiny("llama") for _ in range(2))
    options: dict[str, Any] = {"units": {TERMINATOR}, "max_length": 7, "window": window, "check": False}
    chf.attach(plain, **options)
    chf.attach(marked, **options, reader=[5])
    ids = random_ids(2, 23, end_rate=0.3)
    ids[ids == 5] = 6
    ids[0, 13], ids[1, 10] = 5, 5
    memory = segment(ids, Terminators({TERMINATOR}), max_length=7, reader={5}).memory
    expected = logits(enliven(marked), ids)
    close("llama", logits(enliven(plain), ids, unit_memory=memory), expected)
    assert float((logits(plain, ids) - expected).abs().max()) > 1e-3
    for model in (plain, marked):  # what was marked stays marked when it is rolled back into
        for kept in (3, 9, 16):
            cache = DynamicCache(config=model.config)
            with torch.no_grad():
                model(ids[:, :18], unit_memory=memory[:, :18], past_key_values=cache)
                cache.crop(kept - 18)
                rest = model(ids[:, kept:], unit_memory=memory[:, kept:], past_key_values=cache).logits
            close("llama", rest, expected[:, kept:])


def test_marks_of_a_call_are_kept_when_it_is_rolled_back_into() -> None:
    """In a model with a reader, whose marker the text does not have: what follows marked units reads them."""
    model = tiny("llama")
    chf.attach(model, units={TERMINATOR}, max_length=7, reader=[5], check=False)
    ids = random_ids(1, 20, end_rate=0.3)
    ids[ids == 5] = 6
    memory = torch.arange(20)[None] < 8

    def read(first: int, kept: int) -> Tensor:
        cache = DynamicCache(config=enlivened.config)
        with torch.no_grad():
            enlivened(ids[:, :first], unit_memory=memory[:, :first], past_key_values=cache)
            cache.crop(kept - first)
            return enlivened(ids[:, kept:], past_key_values=cache).logits

    enlivened = enliven(model)
    for kept in (5, 9, 12):
        close("llama", read(kept + 4, kept), read(kept, kept))
    assert float((read(12, 12) - logits(model, ids)[:, 12:]).abs().max()) > 1e-4
