"""Losses made from a part of the logits at a time are those made from all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from contentrope.evaluation.perplexity import perplexity, token_losses, windows_of
from contentrope.hf import losses
from contentrope.hf.finetune import CausalLM
from contentrope.hf.losses import Predictor
from tests.hf.models import VOCABULARY, attached, logits, random_ids, tiny

KINDS = ("llama", "gemma2", "cohere", "granite", "gpt_neox")
"""With caps and scales behind the head, and decoders of other names."""
ROWS = random_ids(3, 41)


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MOST_LOGITS", 7 * len(ROWS) * VOCABULARY)


def expected(model: Any) -> torch.Tensor:
    found = logits(model, ROWS[:, :-1])
    return F.cross_entropy(found.flatten(0, 1), ROWS[:, 1:].flatten(), reduction="none").view(len(ROWS), -1)


@pytest.mark.parametrize("window", [None, 0, 9])
@pytest.mark.parametrize("name", KINDS)
def test_they_are_those_of_all_logits(name: str, window: int | None) -> None:
    model = tiny(name) if window is None else attached(name, window=window)
    read: list[int] = []
    decoded: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: read.append(output.shape[1]))
    model.base_model.register_forward_hook(lambda module, args, output: decoded.append(1))
    found = token_losses(Predictor(model), ROWS)
    assert read == [7, 7, 7, 7, 7, 5]
    assert decoded == [1], "the decoder runs once"
    torch.testing.assert_close(found, expected(model), rtol=1e-11, atol=1e-11)
    assert not torch.allclose(found, found.roll(7, dims=1))


def test_perplexity_is_that_of_the_model_and_progress_is_told() -> None:
    model, told = attached("llama", window=9), []
    value = perplexity(Predictor(model, told.append), ROWS.flatten(), 20, batch_tokens=40)
    assert value == pytest.approx(perplexity(CausalLM(model), ROWS.flatten(), 20), rel=1e-12)
    assert (sum(told), len(told)) == (windows_of(ROWS.flatten(), 20).shape[0] * 20, 3)


def test_a_model_that_always_gives_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda input_ids, use_cache: forward(input_ids, use_cache=use_cache))
    torch.testing.assert_close(Predictor(model).token_losses(ROWS), expected(model), rtol=1e-12, atol=1e-12)


def test_a_failure_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    decoder, before = model.base_model, logits(model, ROWS)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = model.get_output_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        Predictor(model).token_losses(ROWS)
    handle.remove()
    assert model.base_model is decoder
    assert torch.equal(logits(model, ROWS), before)


def test_low_rank_changes_are_read_too() -> None:
    peft = pytest.importorskip("peft")
    model = attached("llama", window=9)
    plain = expected(model)
    changes = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    changed = peft.get_peft_model(model, changes)
    found = Predictor(changed).token_losses(ROWS)
    torch.testing.assert_close(found, expected(changed), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(found, plain.to(found), atol=1e-3)
