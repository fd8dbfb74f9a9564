"""What is measured on a trained model: scores, what another order of the facts changes, and a look inside.

Scored are the characters of the names that are asked for, with the sentence given character by character.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.evaluation.perplexity import evaluating, perplexity_of
from contentrope.inspection import attention_weights
from contentrope.model import Transformer
from contentrope.units import Terminators, segment
from experiments.facts.generator.sampler import Drawn, Sampler
from experiments.facts.generator.world import RELATIONS

BEST = 5
ORDERS = 4
"""How often the facts of an example are put in another order."""
MAPPED = 400
"""Facts on the map of addresses."""


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
    rows_at_once = max(1, batch_tokens // drawn.ids.shape[1])
    parts = zip(drawn.ids.split(rows_at_once), drawn.scored.split(rows_at_once), strict=True)
    with evaluating(model), torch.no_grad():
        logits = torch.cat([_scored_logits(model, ids, scored) for ids, scored in parts])
    scored = drawn.scored.cpu()
    target = drawn.ids.cpu().long()[scored]
    own = logits.gather(-1, target[:, None])
    # Ties count against the model: a model that finds all characters equally likely knows nothing.
    is_in = ((logits >= own).sum(-1) <= BEST) & own[:, 0].isfinite()
    missed = torch.zeros(len(scored)).index_add_(0, scored.nonzero()[:, 0], (~is_in).float())
    losses = -logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
    return Scores(missed == 0, losses, logits.argmax(-1), logits)


def _scored_logits(
    model: nn.Module, ids: Int[Tensor, "rows seq"], scored: Bool[Tensor, "rows seq"]
) -> Float[Tensor, "characters vocab"]:
    """What the model says of every scored character, from everything before it; float32 or better, on the CPU."""
    device = next(model.parameters()).device
    logits = model(ids[:, :-1].long().to(device))[scored[:, 1:].to(device)]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu()


def order_changes(model: Transformer, sampler: Sampler, drawn: Drawn, generator: torch.Generator) -> dict[str, Any]:
    """What becomes of the answers when the same facts stand in another order."""
    orders = [drawn, *(sampler.permuted(drawn, generator) for _ in range(ORDERS))]
    first, *others = [score(model, order) for order in orders]
    precise = copy.deepcopy(model).double()  # tells what is rounding
    exact_first, *exact = [score(precise, order) for order in orders]
    row, differs = drawn.scored.cpu().nonzero()[:, 0], torch.stack([first.best != other.best for other in others])
    changed = torch.zeros(len(drawn.ids)).index_add_(0, row, differs.any(0).float()) > 0
    return {
        "examples": len(drawn.ids),
        "permutations": ORDERS,
        "answers_changed": changed.double().mean().item(),
        "largest_change": max(float((other.logits - first.logits).abs().max()) for other in others),
        "largest_change_float64": max(float((other.logits - exact_first.logits).abs().max()) for other in exact),
        "largest_logit": float(first.logits.abs().max()),
    }


# --- a look inside ---------------------------------------------------------------------------------------------------


def attention_by_unit(model: Transformer, sampler: Sampler, drawn: Drawn) -> dict[str, Any]:
    """The first example, and the share of attention that each scored character pays to each unit, by layer."""
    length = int(drawn.lengths[0])
    ids = drawn.ids[:1, :length].long()
    unit = segment(ids, Terminators(set(sampler.terminators)), max_length=model.config.max_unit_length).unit[0]
    scored = drawn.scored[0, :length].nonzero()[:, 0]
    belongs = torch.nn.functional.one_hot(unit).to(torch.float32)
    tokens = [sampler.vocabulary.decode([i]) for i in ids[0].tolist()]
    weights = attention_weights(model, ids)
    return {
        "tokens": tokens,
        "units": unit.tolist(),
        "unit_texts": ["".join(t for t, u in zip(tokens, unit.tolist(), strict=True) if u == n) for n in unit.unique()],
        "asked": int(drawn.place[0]),
        "scored": scored.tolist(),
        # A character is read off the token before it.
        "attention": [(layer[0].float().mean(0)[scored - 1] @ belongs).tolist() for layer in weights],
    }


def address_map(model: Transformer, sampler: Sampler, generator: torch.Generator) -> dict[str, Any]:
    """The two directions in which the addresses of training facts differ most; angles as points on circles."""
    drawn = sampler.draw(MAPPED, generator, names="train", kind="chain2")
    angles = _first_addresses(model, drawn).flatten(1)
    points, explained = two_directions(torch.cat((angles.cos(), angles.sin()), dim=1))
    relations = [", ".join(RELATIONS[i].roles) for i in drawn.relation.tolist()]
    return {"points": points.tolist(), "relations": relations, "explained": explained}


def _first_addresses(model: Transformer, drawn: Drawn) -> Float[Tensor, "rows kv_heads pairs"]:
    """The address of every example's first unit."""
    caught: list[Tensor] = []
    handle = model.scheme.address.register_forward_hook(lambda module, given, out: caught.append(out))  # type: ignore[union-attr]
    try:
        with evaluating(model), torch.no_grad():
            model(drawn.ids.long())
    finally:
        handle.remove()
    return caught[0][:, 0].double().cpu()


def two_directions(points: Float[Tensor, "points dims"]) -> tuple[Float[Tensor, "points 2"], list[float]]:
    """Principal components, and the share of the variance along each."""
    centred = points - points.mean(0)
    left, size, _ = torch.linalg.svd(centred, full_matrices=False)
    total = size.square().sum().clamp(min=torch.finfo(size.dtype).tiny)
    return left[:, :2] * size[:2], (size[:2].square() / total).tolist()
