"""``generate`` in every manner gives what reading the whole text anew at every step gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.hf.models import ARCHITECTURES, attached, padded_dtype, random_ids

NEW = 12
some = pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2", "gemma3", "glm", "gpt_oss", "nemotron"])


def generated(model: PreTrainedModel, ids: Tensor, **options: Any) -> Tensor:
    torch.manual_seed(3)
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **options}
    options.setdefault("attention_mask", torch.ones_like(ids))
    return model.generate(ids, **options)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy(name: str) -> None:
    model, ids = attached(name), random_ids(2, 14)
    assert torch.equal(generated(model, ids), generated(model, ids, use_cache=False))


MANNERS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 20},
    "several": {"do_sample": True, "num_return_sequences": 2},
    "sampled beams": {"num_beams": 2, "do_sample": True},
}


@some
@pytest.mark.parametrize("manner", MANNERS.values(), ids=MANNERS)
def test_other_manners(name: str, manner: dict[str, Any]) -> None:
    model, ids = attached(name), random_ids(2, 14)
    assert torch.equal(generated(model, ids, **manner), generated(model, ids, use_cache=False, **manner))


WAYS: dict[str, dict[str, Any]] = {
    "static cache": {"cache_implementation": "static"},
    "chunked prefill": {"prefill_chunk_size": 5},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


@some
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_other_ways_of_caching(name: str, way: dict[str, Any]) -> None:
    model, ids = attached(name), random_ids(1, 14)
    ids[0, 8:] = ids[0, 1:7]  # so that there is something to look up
    assert torch.equal(generated(model, ids, **way), generated(model, ids, use_cache=False))


@some
@pytest.mark.parametrize("way", [{}, {"num_beams": 2}, {"cache_implementation": "static"}], ids=["", "beams", "static"])
def test_prompts_padded_on_the_left(name: str, way: dict[str, Any]) -> None:
    model, ids = attached(name, dtype=padded_dtype(name)), random_ids(3, 14)
    lengths = (14, 9, 11)
    mask = torch.arange(14) >= 14 - torch.tensor(lengths)[:, None]
    padded = torch.where(mask, ids, 0)
    together = generated(model, padded, attention_mask=mask.long(), **way)
    for row, length in enumerate(lengths):
        alone = generated(
            model, ids[row : row + 1, 14 - length :], use_cache=False, **way | {"cache_implementation": None}
        )
        assert torch.equal(together[row, 14:], alone[0, length:])


def test_an_assistant_is_corrected() -> None:
    model, ids = attached("llama"), random_ids(1, 14)
    for assistant in (attached("llama", seed=5), attached("llama", positions=0.9)):
        found = generated(model, ids, assistant_model=assistant, num_assistant_tokens=4)
        assert torch.equal(found, generated(model, ids, use_cache=False))


def test_a_conversation_goes_on_with_its_cache() -> None:
    model, ids = attached("llama"), random_ids(1, 30)
    first = generated(model, ids[:, :10], return_dict_in_generate=True)
    whole = torch.cat((first.sequences, ids[:, 10:20]), dim=1)
    found = generated(model, whole, past_key_values=first.past_key_values)
    assert torch.equal(found, generated(model, whole, use_cache=False))
