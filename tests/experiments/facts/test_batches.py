"""What a step of training sees."""

from __future__ import annotations

import pytest
import torch

from contentrope.training import IGNORED
from experiments.facts.batches import STEPS_AT_ONCE, FactBatches, inputs_and_targets
from experiments.facts.generator.sampler import Sampler
from experiments.facts.generator.world import World


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(World())


@pytest.mark.parametrize("facts", [(1, 1), (1, 8)])
def test_a_batch_depends_on_step_and_seed_alone(sampler: Sampler, facts: tuple[int, int]) -> None:
    steps = (0, 1, STEPS_AT_ONCE - 1, STEPS_AT_ONCE, 3 * STEPS_AT_ONCE + 5)
    in_order, by_itself = FactBatches(sampler, facts), FactBatches(sampler, facts)
    torch.manual_seed(1)
    first = [in_order.at(step, 4, seed=7) for step in steps]
    torch.manual_seed(2)
    for step, batch in reversed(list(zip(steps, first, strict=True))):
        again = by_itself.at(step, 4, seed=7)
        assert torch.equal(again.inputs["ids"], batch.inputs["ids"])
        assert torch.equal(again.targets, batch.targets)
    others = [batch.inputs["ids"] for batch in (*first, by_itself.at(0, 4, seed=8))]
    assert all(not torch.equal(a, b) for i, a in enumerate(others) for b in others[:i])


def test_every_token_but_the_first_is_a_target_and_padding_is_none(sampler: Sampler) -> None:
    drawn = sampler.draw(50, torch.Generator().manual_seed(0))
    ids, targets = inputs_and_targets(drawn)
    assert ids.is_contiguous()
    for row, length in enumerate(drawn.lengths.tolist()):
        assert torch.equal(ids[row, :length], drawn.ids[row, :length].long()[: ids.shape[1]])
        assert torch.equal(targets[row, : length - 1], drawn.ids[row, 1:length].long())
        assert bool((targets[row, length - 1 :] == IGNORED).all())


def test_answers_alone_are_targets_from_their_step_on(sampler: Sampler) -> None:
    drawn = sampler.draw(50, torch.Generator().manual_seed(0))
    ids, every = inputs_and_targets(drawn)
    same_ids, answers = inputs_and_targets(drawn, only_answers=True)
    assert torch.equal(ids, same_ids)
    assert torch.equal(answers != IGNORED, drawn.scored[:, 1:])
    assert torch.equal(answers[answers != IGNORED], every[answers != IGNORED])
    always, later, never = (FactBatches(sampler, answers_from=step) for step in (0, STEPS_AT_ONCE, None))
    for step in (0, STEPS_AT_ONCE - 1, STEPS_AT_ONCE, 3 * STEPS_AT_ONCE):
        like = never if step < STEPS_AT_ONCE else always
        assert torch.equal(later.at(step, 8, 0).targets, like.at(step, 8, 0).targets)
    every, few = (int((batches.at(0, 8, 0).targets != IGNORED).sum()) for batches in (never, always))
    assert 0 < few < every


def test_several_facts_come_in_every_number_asked_for(sampler: Sampler) -> None:
    (end,) = sampler.vocabulary.encode(";")
    batches = FactBatches(sampler, (2, 5))
    ids = torch.cat([batches.at(step, 8, 0).inputs["ids"] for step in range(20)])
    assert set((ids == end).sum(1).tolist()) == {2, 3, 4, 5}


def test_facts_come_one_by_one_where_they_are_asked_to(sampler: Sampler) -> None:
    (end,) = sampler.vocabulary.encode(";")
    batches = FactBatches(sampler, (1, 3), ramp=6 * STEPS_AT_ONCE)
    most, widths = [], set()
    for block in range(8):
        ids = torch.cat([batches.at(block * STEPS_AT_ONCE + step, 4, 0).inputs["ids"] for step in range(0, 128, 8)])
        most.append(int((ids == end).sum(1).max()))
        widths.add(ids.shape[1])
    assert most == [1, 1, 2, 2, 3, 3, 3, 3]
    assert len(widths) == 1, "what is compiled for one step serves every other"
