"""Answers are those of the model alone: whatever is read beside a prompt, and whatever its checkpoint suggests."""

from __future__ import annotations

import importlib.util
from random import Random
from typing import Any

import pytest
import torch

if not importlib.util.find_spec("transformers"):
    pytest.skip("needs transformers", allow_module_level=True)

from torch import Tensor

from contentrope.errors import InputError
from contentrope.evaluation.answers import accuracy, answers
from contentrope.evaluation.tasks import Example, prompt_ids
from contentrope.hf.characters import character_tokenizer
from tests.hf.models import TERMINATOR, VOCABULARY, attached, tiny

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOKENIZER = character_tokenizer(LETTERS + "".join(map(str, range(6))))
MODELS: dict[str, dict[str, Any]] = {"plain": {}, "converted": {"window": 0}, "with a window": {"window": 6}}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return endless(MODELS[request.param])


def endless(options: dict[str, Any] | None = None) -> Any:
    """A model whose texts do not end."""
    model = attached("llama", **options) if options else tiny("llama")
    model.generation_config.eos_token_id = None
    return model


def asked(lengths: list[int], new_tokens: int = 9) -> list[Example]:
    draw = Random(0)
    symbols = [TOKENIZER.decode([token]) for token in range(len(TOKENIZER) - 1)]
    assert symbols[TERMINATOR] in symbols
    return [
        Example("".join(draw.choices([*symbols, *[symbols[TERMINATOR]] * 12], k=length)), "ab", ("zz",), new_tokens)
        for length in lengths
    ]


@torch.no_grad()
def by_hand(model: Any, example: Example) -> str:
    """The whole text anew for every token: neither padding nor a cache."""
    ids = prompt_ids(TOKENIZER, example)
    begin = len(ids)
    for _ in range(example.new_tokens):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1, : len(TOKENIZER)]
        ids.append(int(logits.argmax()))
    return TOKENIZER.decode(ids[begin:])


@pytest.mark.parametrize("batch_tokens", [1, 60, 1000])
def test_examples_read_together_are_answered_as_one_by_one(model: Any, batch_tokens: int) -> None:
    examples = asked([30, 5, 17, 29, 1])
    expected = [by_hand(model, example) for example in examples]
    assert answers(model, TOKENIZER, examples, batch_tokens=batch_tokens) == expected
    assert len(set(expected)) == len(expected)


@torch.no_grad()
def test_padding_that_is_seen_would_change_answers(model: Any) -> None:
    """The control: the comparison above tells whether padding is hidden."""
    example = asked([12])[0]
    ids = torch.tensor([[0] * 18 + prompt_ids(TOKENIZER, example)])
    options = {"max_new_tokens": 9, "do_sample": False, "suppress_tokens": list(range(len(TOKENIZER), VOCABULARY))}
    found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), eos_token_id=None, **options)
    assert TOKENIZER.decode(found[0, ids.shape[1] :]) != by_hand(model, example)


def test_only_the_last_position_has_logits_and_batches_are_bounded(model: Any) -> None:
    read: list[tuple[int, ...]] = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: read.append(tuple(output.shape)))
    embedded: list[tuple[int, ...]] = []
    model.get_input_embeddings().register_forward_hook(
        lambda module, args, output: embedded.append(tuple(output.shape))
    )
    progress: list[int] = []
    answers(model, TOKENIZER, asked([40, 40, 39, 8, 7]), batch_tokens=105, progress=progress.append)
    assert {logits.shape[1] for logits in read} == {1}
    assert [tuple(one.shape[:2]) for one in embedded if one.shape[1] > 1] == [(2, 42), (2, 41), (1, 9)]
    assert progress == [2, 4, 5]


def test_an_answer_ends_where_the_model_ends_it_and_where_it_is_enough() -> None:
    model, examples = endless(), asked([30, 5, 17])
    whole = answers(model, TOKENIZER, examples)
    token = TOKENIZER(whole[0][4])["input_ids"][0]
    model.generation_config.eos_token_id = [token]
    ended = answers(model, TOKENIZER, examples)
    for text, before in zip(ended, whole, strict=True):
        place = before.find(whole[0][4])
        assert text == (before if place < 0 else before[: place + 1])
    assert ended[0] != whole[0]
    model.generation_config.eos_token_id = None
    first = answers(model, TOKENIZER, examples, enough=lambda example, text: len(text) >= 2 + examples.index(example))
    assert first == [text[: 2 + row] for row, text in enumerate(whole)]
    short = [example._replace(new_tokens=1 + row) for row, example in enumerate(examples)]
    assert answers(model, TOKENIZER, short) == [text[: 1 + row] for row, text in enumerate(whole)]


def test_what_a_checkpoint_suggests_for_generation_is_not_used_and_kept() -> None:
    model, examples = endless(), asked([30, 5])
    expected = answers(model, TOKENIZER, examples)
    own = model.generation_config
    own.do_sample, own.temperature, own.repetition_penalty, own.min_new_tokens = True, 5.0, 9.0, 3
    model.train()
    assert answers(model, TOKENIZER, examples) == expected
    assert model.generation_config is own
    assert model.training
    with pytest.raises(InputError, match="no examples"):
        answers(model, TOKENIZER, [])


class Repeating:
    """Says again what the prompt begins with, or nothing that was asked for."""

    def __init__(self, model: Any, knows: bool) -> None:
        self.model, self.knows = model, knows

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def generate(self, input_ids: Tensor, stopping_criteria: list, max_new_tokens: int, **options: Any) -> None:
        """What a model of its own would do: copies the needle, token by token."""
        starts = options["attention_mask"].argmax(dim=1)
        ids = input_ids
        for place in range(max_new_tokens):
            column = starts + (place if self.knows else 0)
            ids = torch.cat([ids, input_ids.gather(1, column[:, None])], dim=1)
            if bool(stopping_criteria[0](ids, None).all()):
                return


@pytest.mark.parametrize(("knows", "expected"), [(True, 0.75), (False, 0.0)])
def test_accuracy_is_the_mean_score(knows: bool, expected: float) -> None:
    model = Repeating(tiny("llama"), knows)
    examples = [
        Example("abcdefg", "x", ("bcd",), 6),
        Example("opqrstuvwxyz", "x", ("opq", "xyz"), 6),  # further than the answer may go
    ]
    found, said = accuracy(model, TOKENIZER, "niah_multivalue", examples)
    assert found == expected
    if knows:
        assert said == ["abcd", "opqrst"], "the first one ends as soon as all is said"
