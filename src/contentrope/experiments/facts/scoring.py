"""Hit@5 and perplexity on the characters of the names that are asked for, with the sentence given character by
character."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.experiments.evaluation import evaluating, perplexity_of
from contentrope.facts import Drawn

BEST = 5


class Scores(NamedTuple):
    """By example, and by scored character."""

    hit: Bool[Tensor, "rows"]
    """Every scored character is among the five the model finds most likely."""
    losses: Float[Tensor, "characters"]
    best: Int[Tensor, "characters"]
    """The most likely character where one is scored."""
    logits: Float[Tensor, "characters vocab"]

    def summary(self) -> dict[str, Any]:
        return {
            "hit5": self.hit.double().mean().item(),
            "perplexity": perplexity_of(self.losses),
            "examples": len(self.hit),
        }


def score(model: nn.Module, drawn: Drawn, batch_tokens: int = 65536) -> Scores:
    """Scores on the CPU; the model reads about ``batch_tokens`` at once, in evaluation mode on its own device."""
    device = next(model.parameters()).device
    rows_at_once = max(1, batch_tokens // drawn.ids.shape[1])
    parts = zip(drawn.ids.split(rows_at_once), drawn.scored.split(rows_at_once), strict=True)
    with evaluating(model), torch.no_grad():
        logits = torch.cat([_scored_logits(model, ids.to(device), scored.to(device)) for ids, scored in parts])
    scored = drawn.scored.cpu()
    target = drawn.ids.cpu().long()[scored]
    log_probability = logits.log_softmax(-1)
    own = logits.gather(-1, target[:, None])
    # Ties count against the model: a model that finds all characters equally likely knows nothing.
    is_in = ((logits >= own).sum(-1) <= BEST) & own[:, 0].isfinite()
    missed = torch.zeros(len(scored)).index_add_(0, scored.nonzero()[:, 0], (~is_in).float())
    losses = -log_probability.gather(-1, target[:, None])[:, 0]
    return Scores(missed == 0, losses, logits.argmax(-1), logits)


def _scored_logits(
    model: nn.Module, ids: Int[Tensor, "rows seq"], scored: Bool[Tensor, "rows seq"]
) -> Float[Tensor, "characters vocab"]:
    """What the model says of every scored character, from everything before it; float32 or better, on the CPU."""
    logits = model(ids[:, :-1].long())[scored[:, 1:]]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu()
