"""Addresses to begin with, before anything is trained."""

from __future__ import annotations

import torch
from torch import nn

from contentrope.hf.adapter import adapter_of


@torch.no_grad()
def lie_back(model: nn.Module, tokens: int) -> None:
    """Addresses that put every completed unit so many ``tokens`` before the open one, whatever its content.

    A long unit away, all its tokens come before those of the open unit, at distances that the model was trained with.
    So it reads well before anything is trained, though it cannot tell units apart.
    """
    adapter = adapter_of(model)
    for turning, address in zip(adapter.turnings, adapter.addresses.by_turning, strict=True):
        bias = address.project.bias
        bias.copy_((-tokens * turning.frequency).repeat(turning.heads).to(bias))
