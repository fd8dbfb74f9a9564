"""One update shared by several processes: DDP or FSDP2, as ``accelerate launch`` or ``torchrun`` was told.

Every process draws the same whole batch and computes its own rows of it. Each divides by the scored tokens of the
whole batch, so the sum over the processes is the loss one process would have found.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from contentrope.errors import InputError
from contentrope.training.batches import Batch, mixed_seed
from contentrope.training.config import TrainConfig
from contentrope.training.steps import Stepper
from contentrope.training.team import Team, launched_accelerator


def whole(value: Tensor) -> Tensor:
    """All of a tensor, however it is spread over processes. Every process must ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def placed(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor laid out like another one. Every process has it already, so none is asked for it."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


class DistributedStepper(Stepper):
    """A model whose updates several processes compute together, on its device's kind.

    All start from the first one's weights. With FSDP2 the model is sharded in place; :meth:`pack` makes it whole.
    """

    _whole, _placed = staticmethod(whole), staticmethod(placed)

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        accelerator = launched_accelerator(on_cpu=next(model.parameters()).device.type == "cpu")
        self.accelerator, self.team = accelerator, Team(accelerator)
        _require_shares(config, self.team.size)
        plugin = _fsdp_plugin(accelerator)
        self.sharded = plugin is not None
        model.to(accelerator.device)
        if self.sharded:  # takes each process's own part of its own weights; DDP sends them by itself
            for value in model.state_dict().values():
                torch.distributed.broadcast(value, src=0)
        by_hand = self.sharded and accelerator.device.type == "cpu"
        if by_hand:
            _shard_on_cpu(model, plugin, self.team.size)
        super().__init__(model, config)
        if not by_hand:
            self.called, _ = accelerator.prepare(model, self.optimizer)

    def _resolved(self, acceleration: str) -> str:
        return "none" if acceleration == "auto" else acceleration

    def _seed_of(self, step: int) -> int:
        return mixed_seed(self.config.seed, step, 1, self.team.rank)

    def _parts(self, batch: Batch) -> Iterable[Batch]:
        mine = list(batch.parts(self.team.size))[self.team.rank]
        return mine.map(lambda x: x.to(self.device)).parts(self.config.accumulate)

    @contextmanager
    def _exchanging(self, last: bool) -> Iterator[None]:
        if not self.sharded:
            with nullcontext() if last else self.accelerator.no_sync(self.called):
                yield
            return
        cast(Any, self.called).set_requires_gradient_sync(last)
        with warnings.catch_warnings():
            # Logits that are a view must not be changed in place; nothing here does so.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
            yield

    def _backward_of(self, loss: Tensor) -> None:
        # Gradients are averaged over the processes; what is wanted is their sum.
        (loss * self.team.size).backward()

    def _summed(self, loss: Tensor) -> Tensor:
        return self.accelerator.reduce(loss, "sum")

    def _clipped(self) -> Tensor:
        return whole(self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip))


def _shard_on_cpu(model: nn.Module, plugin: Any, processes: int) -> None:
    """FSDP2 by torch's own function: Accelerate ignores FSDP on CPUs. Layers that the launcher names are sharded one
    by one, the rest as one."""
    mesh = init_device_mesh("cpu", (processes,))
    layers = set(plugin.transformer_cls_names_to_wrap or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, reshard_after_forward=plugin.reshard_after_forward)
    fully_shard(model, mesh=mesh)


def _require_shares(config: TrainConfig, processes: int) -> None:
    if config.acceleration == "graphs":
        raise InputError(f"acceleration 'graphs' is for one process, these are {processes}; use auto")
    shares = processes * config.accumulate
    if config.batch_size % shares:
        raise InputError(
            f"batch_size {config.batch_size} does not divide into {processes} processes x accumulate "
            f"{config.accumulate}; make it a multiple of {shares}"
        )


def _fsdp_plugin(accelerator: Any) -> Any:
    """The settings of ``accelerate launch --use_fsdp``; None where the processes are to use DDP."""
    kind = accelerator.distributed_type.value
    if kind not in ("MULTI_CPU", "MULTI_GPU", "FSDP"):
        raise InputError(f"processes of kind {kind} are not supported; launch for DDP, or with --use_fsdp")
    plugin = accelerator.state.fsdp_plugin if kind == "FSDP" else None
    if kind == "MULTI_CPU" and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        from accelerate import FullyShardedDataParallelPlugin  # type: ignore[import-untyped]

        plugin = FullyShardedDataParallelPlugin()  # which Accelerate does not heed on CPUs
    if plugin is not None and plugin.fsdp_version != 2:
        raise InputError(f"FSDP version {plugin.fsdp_version} is not supported; launch with --fsdp_version 2")
    if plugin is not None:
        plugin.cpu_ram_efficient_loading = False  # it cannot load buffers, and every process has a model already
    return plugin
