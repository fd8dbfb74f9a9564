"""Which weights the changes of LoRA belong to: a fingerprint, the same whether PEFT is around the model or not.

Weights are compared as rounded to 16 bits, so that a model may be loaded in another precision than it was trained in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from contentrope.hf.addresses import NAME
from contentrope.sealed import fingerprint
from contentrope.training.distributed import whole

AROUND = "base_model.model."
"""What PEFT puts before the names of a model's weights."""
INSIDE = ".base_layer"
"""And into the names of those that it changes."""


def base_fingerprint(model: Any) -> dict[str, str] | None:
    """Of a model without its addresses and without what PEFT added; None if its weights are not as they were loaded:
    quantised, or with the changes merged into them."""
    weights = dict(_weights(model))
    merged = any(getattr(module, "merged", False) is True for module in model.modules())
    if merged or not all(weight.is_floating_point() for weight in weights.values()):
        return None
    rounded = torch.float16 if any(w.dtype == torch.float16 for w in weights.values()) else torch.bfloat16
    return _rounded(weights, rounded)


def fingerprint_like(like: Mapping[str, Any], model: Any, load: Callable[[torch.dtype | str], Any]) -> dict[str, str]:
    """That of a plain model, rounded as another fingerprint is; loaded anew where it has been rounded otherwise."""
    wanted = torch.float16 if like.get("rounded") == "float16" else torch.bfloat16
    if any(weight.dtype not in (wanted, torch.float32, torch.float64) for _, weight in _weights(model)):
        model = load(wanted)
    return _rounded(dict(_weights(model)), wanted)


def _rounded(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, str]:
    found = fingerprint((name, whole(weight).to(dtype)) for name, weight in weights.items())
    return {"sha256": found, "rounded": str(dtype).removeprefix("torch.")}


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.named_parameters():
        plain = name.removeprefix(AROUND).replace(INSIDE, "")
        if not (plain.startswith(f"{NAME}.") or ".lora_" in plain):
            yield plain, weight.detach()
