"""What a step of training sees: facts and a sentence. Its targets are all tokens, or later the names asked for."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.training import IGNORED, Batch
from contentrope.training.batches import mixed_seed
from experiments.facts.generator.sampler import Drawn, Sampler

STEPS_AT_ONCE = 128
"""Drawn together: a step is too short to wait for the drawing of one batch."""


class FactBatches:
    """Examples with ``facts`` = (fewest, most) facts each; those of a step depend on the seed and the step alone.

    Over the first ``ramp`` steps the most grow from the fewest on: to copy from one fact is learned first.
    From step ``answers_from`` on only the names asked for are targets; None: every token always is.
    """

    def __init__(
        self, sampler: Sampler, facts: tuple[int, int] = (1, 1), ramp: int = 0, answers_from: int | None = None
    ) -> None:
        self.sampler, self.facts, self.ramp, self.answers_from = sampler, facts, ramp, answers_from
        self._drawn: tuple[Any, Int[Tensor, "steps rows seq"], Int[Tensor, "steps rows seq"]] | None = None

    def at(self, step: int, rows: int, seed: int) -> Batch:
        block, place = divmod(step, STEPS_AT_ONCE)
        if self._drawn is None or self._drawn[0] != (block, rows, seed):
            self._drawn = ((block, rows, seed), *self._draw(block, rows, seed))
        _, ids, targets = self._drawn
        return Batch({"ids": ids[place]}, targets[place])

    def most_at(self, step: int) -> int:
        """
        >>> [FactBatches(None, (1, 4), ramp=100).most_at(step) for step in (0, 24, 25, 50, 75, 99, 100, 500)]
        [1, 1, 2, 3, 4, 4, 4, 4]
        """
        fewest, most = self.facts
        stages = most - fewest + 1
        return min(most, fewest + (step * stages // self.ramp if self.ramp else stages))

    def _draw(self, block: int, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(mixed_seed(seed, block, 2))
        begin = block * STEPS_AT_ONCE
        fewest, most = self.facts[0], self.most_at(begin)
        several: dict[str, Any] = {"condition": "mixed", "distractors": (fewest - 1, most - 1)} if most > 1 else {}
        # As wide as the longest example of all training: what is compiled for one step serves every other.
        width = self.sampler.width("any", self.facts[1])
        drawn = self.sampler.draw(STEPS_AT_ONCE * rows, generator, names="train", width=width, **several)
        only_answers = self.answers_from is not None and begin >= self.answers_from
        ids, targets = inputs_and_targets(drawn, only_answers=only_answers)
        return ids.unflatten(0, (-1, rows)), targets.unflatten(0, (-1, rows))


def inputs_and_targets(
    drawn: Drawn, *, only_answers: bool = False
) -> tuple[Int[Tensor, "rows seq"], Int[Tensor, "rows seq"]]:
    """Every token but the last, and the token that follows each; padding is nobody's target.

    Padding stands at the end, where no token before it can see it: it needs no mask.
    """
    ids = drawn.ids.long()
    column = torch.arange(1, ids.shape[1], device=ids.device)
    is_target = drawn.scored[:, 1:] if only_answers else column < drawn.lengths[:, None]
    return ids[:, :-1].contiguous(), torch.where(is_target, ids[:, 1:], IGNORED)
