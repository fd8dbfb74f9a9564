"""Tensors that are spread over processes: made whole, and laid out again."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(value: Tensor) -> Tensor:
    """All of a tensor, however it is spread. Every process must ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def placed(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor laid out like another one. Every process has it already, so none is asked for it."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def share_weights(model: nn.Module) -> None:
    """Every process gets the weights of the first. Sharding takes each process's own part of its own weights."""
    for value in model.state_dict().values():
        torch.distributed.broadcast(value, src=0)


def shard_on_cpu(model: nn.Module, plugin: Any, processes: int) -> None:
    """FSDP2 by torch's own function: Accelerate knows FSDP on accelerators only, and ignores it on CPUs.

    The layers that the launcher names get their own group, the rest another.
    """
    mesh = init_device_mesh("cpu", (processes,))
    layers = set(plugin.transformer_cls_names_to_wrap or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, reshard_after_forward=plugin.reshard_after_forward)
    fully_shard(model, mesh=mesh)
