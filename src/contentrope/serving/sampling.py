"""How the next token of a request is chosen, whoever else is in its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.generation import keep_likely


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """``temperature`` 0 takes the likeliest token. Without a ``seed`` every request draws otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None

    def generator(self) -> torch.Generator:
        """Of one request: what others draw does not move it."""
        made = torch.Generator()
        if self.seed is None:
            made.seed()
        else:
            made.manual_seed(self.seed)
        return made


def draw(
    logits: Float[Tensor, "rows vocab"], samplings: Sequence[Sampling], generators: Sequence[torch.Generator]
) -> list[int]:
    """The next token of every row.

    >>> draw(torch.tensor([[0.0, 2.0, 1.0]]), [Sampling(temperature=0)], [torch.Generator()])
    [1]
    """
    tokens = logits.argmax(-1).tolist()
    for row, (sampling, generator) in enumerate(zip(samplings, generators, strict=True)):
        if sampling.temperature:
            weights = (logits[row : row + 1].double() / sampling.temperature).softmax(-1)
            likely = keep_likely(weights, None, sampling.top_p if sampling.top_p < 1 else None)
            tokens[row] = int(torch.multinomial(likely.cpu(), 1, generator=generator))
    return tokens
