"""A look into a trained model: which fact each character of an answer is read from, and where facts lie."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.experiments.evaluation import evaluating
from contentrope.facts import RELATIONS, Drawn, Sampler
from contentrope.inspection import attention_weights
from contentrope.model import Transformer
from contentrope.units import Terminators, segment

MAPPED = 400
"""Facts on the map of addresses."""


def look_inside(model: Transformer, sampler: Sampler, drawn: Drawn, generator: torch.Generator) -> dict[str, Any]:
    """Attention in the first of the examples and, where facts have addresses from their content, a map of them."""
    found: dict[str, Any] = {"inside": _attention(model, sampler, drawn)}
    if model.config.scheme == "content":
        found["addresses"] = _map_of_addresses(model, sampler, generator)
    return found


def _attention(model: Transformer, sampler: Sampler, drawn: Drawn) -> dict[str, Any]:
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


def _map_of_addresses(model: Transformer, sampler: Sampler, generator: torch.Generator) -> dict[str, Any]:
    """The two directions in which the addresses of training facts differ most; angles as points on circles."""
    drawn = sampler.draw(MAPPED, generator, names="train", kind="chain2")
    angles = _first_addresses(model, drawn).flatten(1)
    circles = torch.cat((angles.cos(), angles.sin()), dim=1)
    points, explained = two_directions(circles)
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
