"""No token sees a later one, in any architecture: the logits up to t stay the same to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contentrope.hf import adapter, frame
from tests.hf.models import ARCHITECTURES, TERMINATOR, VOCABULARY, attached, logits, random_ids

every = pytest.mark.parametrize("name", ARCHITECTURES)


def futures(ids: Tensor, t: int) -> dict[str, Tensor]:
    """The same text up to t, followed by something else; the last two also move all later unit ends."""
    other, no_ends, all_ends = ids.clone(), ids.clone(), ids.clone()
    other[:, t + 1 :] = random_ids(*ids.shape, seed=99)[:, t + 1 :]
    no_ends[:, t + 1 :] = 4 + ids[:, t + 1 :] % (VOCABULARY - 4)
    all_ends[:, t + 1 :] = TERMINATOR
    found = {"other tokens": other, "no ends": no_ends, "nothing but ends": all_ends}
    return {name: changed for name, changed in found.items() if not torch.equal(changed, ids)}


def check_causal(model: Any, ids: Tensor, times: tuple[int, ...] = (0, 7, 12, 17)) -> None:
    expected = logits(model, ids)
    for t in times:
        for name, changed in futures(ids, t).items():
            found = logits(model, changed)
            assert not torch.equal(found[:, t + 1 :], expected[:, t + 1 :]), f"{name} after {t}: nothing was changed"
            assert torch.equal(found[:, : t + 1], expected[:, : t + 1]), f"{name} after {t} changes what came before"


@every
def test_later_tokens_change_nothing(name: str) -> None:
    check_causal(attached(name), random_ids(2, 19))


@pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("positions", ["global", 0.5])
def test_nor_at_other_positions_in_float32(name: str, positions: str | float) -> None:
    check_causal(attached(name, positions=positions, dtype=torch.float32), random_ids(2, 19))


@every
def test_no_gradient_reaches_an_earlier_logit_from_a_later_embedding(name: str) -> None:
    model, ids = attached(name), random_ids(1, 13)
    embedded: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    model.get_input_embeddings().register_forward_hook(keep)
    for t in (4, 9):
        embedded.clear()
        model(ids).logits[:, t].square().sum().backward()
        gradient = sum(x.grad for x in embedded if x.grad is not None)
        assert bool((gradient[:, : t + 1] != 0).any())
        assert bool((gradient[:, t + 1 :] == 0).all())


# --- the negative control ---


def leaky_frame(*args: Any, **kwargs: Any) -> frame.Frame:
    """The paper's formula taken at its word: every query carries the address of its own unit, open or not."""
    made = frame.frame_of(*args, **kwargs)
    every_query = torch.ones_like(made.rule.closes)
    rotations = made.rotations._replace(queries=made.rotations.span.rotated.rotations)
    return replace(made, rule=replace(made.rule, closes=every_query, memo={}), rotations=rotations)


@pytest.mark.parametrize("name", ["llama", "gemma2", "glm"])
def test_addresses_of_open_units_leak_the_future(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "frame_of", leaky_frame)
    with pytest.raises(AssertionError, match="changes what came before"):
        check_causal(attached(name), random_ids(2, 19))
