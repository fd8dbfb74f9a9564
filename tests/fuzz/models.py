"""Random settings of our own models, and the models made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

import contentrope as cr
from tests.support import KNOW_MEMORY, VARIANTS, VOCABULARY, lively_model

MARKER = VOCABULARY - 1
SCALES = (0.5, 1.0, 1.0, 2.0, 4.0, 8.0)
"""Of weights, against those of ``lively_model``: N(0, 1.2^2 / inputs). Rounding grows with them, layer by layer."""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def mask(seed: int, rate: float, *shape: int) -> Tensor:
    """True at this rate; the first columns of a longer mask of one row are those of a shorter one."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < rate


def draw_model(random: Random, variants: Sequence[str] = VARIANTS) -> dict[str, Any]:
    """Addressed schemes come up more often: they do most of what can go wrong."""
    scheme = random.choice([*variants, *(name for name in KNOW_MEMORY * 4 if name in variants)])
    dim, heads, kv_heads = random.choice([(24, 2, None), (24, 2, 1), (32, 4, 2), (32, 4, None), (24, 1, None)])
    return {
        "scheme": scheme,
        "seed": random.randrange(1000),
        "scale": random.choice(SCALES),
        "backend": random.choice(["auto", "tiled", "reference"]) if scheme in KNOW_MEMORY else "auto",
        "dim": dim,
        "heads": heads,
        "kv_heads": kv_heads,
        "layers": random.choice([1, 2, 2, 3]),
        "max_unit_length": random.choice([1, 2, 3, 5, 7, 7, 40]),
        "terminators": random.choice([(0,), (0,), (0,), (0, 3), ()]),
        "reader": (MARKER,) if scheme in KNOW_MEMORY and random.random() < 0.2 else (),
        "rotary": cr.RotaryConfig(
            pairs=random.choice(["half", "interleaved"]),
            frequencies=random.choice(["per_head", "per_head", "model_wide"]),
            fraction=random.choice([1.0, 1.0, 0.5]),
        ),
        "options": draw_options(random, scheme),
    }


def draw_options(random: Random, scheme: str) -> dict[str, Any]:
    if scheme == "randomized":
        return {"range": 512}
    if scheme not in KNOW_MEMORY:
        return {}
    options: dict[str, Any] = random.choice([{}, {"competition": 0.8}, {"competition": 1.0, "learn_competition": True}])
    options = options | random.choice([{}, {}, {"window": random.choice([1, 2, 5, 5, 9, 14, 30])}])
    return options | random.choice([{}, {}, {"sharpness": 0.3}, {"sharpness": 0.3, "learn_sharpness": True}])


def model_of(settings: Mapping[str, Any], dtype: torch.dtype = torch.float64) -> cr.Transformer:
    own = {name: value for name, value in settings.items() if name not in ("scale", "scheme")}
    model = lively_model(settings["scheme"], **own)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "learned" in name:  # one number per layer and head, and none like another
                parameter.copy_(torch.linspace(-0.3, 1.5, parameter.numel()).view_as(parameter))
            elif parameter.ndim >= 2 and "embedding" not in name:
                parameter.mul_(settings["scale"])
    return model.to(dtype)


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference, against the largest number expected; what is not a number is infinitely far off."""
    if not expected.numel():
        return 0.0
    distance = (found.double() - expected.double()).abs().max() / expected.double().abs().max()
    return float(torch.where(distance.isnan(), torch.inf, distance))
