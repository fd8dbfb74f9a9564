"""What a step of training sees: facts and a sentence, every token of which is a target."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.facts import Drawn, Sampler
from contentrope.training import IGNORED, Batch
from contentrope.training.batches import mixed_seed

STEPS_AT_ONCE = 128
"""Drawn together: a step is too short to wait for the drawing of one batch."""


class FactBatches:
    """Examples with ``facts`` = (fewest, most) facts each; those of a step depend on the seed and the step alone."""

    def __init__(self, sampler: Sampler, facts: tuple[int, int] = (1, 1)) -> None:
        self.sampler, self.facts = sampler, facts
        self._drawn: tuple[Any, Int[Tensor, "steps rows seq"], Int[Tensor, "steps rows seq"]] | None = None

    def at(self, step: int, rows: int, seed: int) -> Batch:
        block, place = divmod(step, STEPS_AT_ONCE)
        if self._drawn is None or self._drawn[0] != (block, rows, seed):
            self._drawn = ((block, rows, seed), *self._draw(block, rows, seed))
        _, ids, targets = self._drawn
        return Batch({"ids": ids[place]}, targets[place])

    def _draw(self, block: int, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(mixed_seed(seed, block, 2))
        fewest, most = self.facts
        several: dict[str, Any] = {"condition": "mixed", "distractors": (fewest - 1, most - 1)} if most > 1 else {}
        drawn = self.sampler.draw(STEPS_AT_ONCE * rows, generator, names="train", **several)
        ids, targets = inputs_and_targets(drawn)
        return ids.unflatten(0, (-1, rows)), targets.unflatten(0, (-1, rows))


def inputs_and_targets(drawn: Drawn) -> tuple[Int[Tensor, "rows seq"], Int[Tensor, "rows seq"]]:
    """Every token but the last, and the token that follows each; padding is nobody's target.

    Padding stands at the end, where no token before it can see it: it needs no mask.
    """
    ids = drawn.ids.long()
    column = torch.arange(1, ids.shape[1], device=ids.device)
    targets = torch.where(column < drawn.lengths[:, None], ids[:, 1:], IGNORED)
    return ids[:, :-1].contiguous(), targets
