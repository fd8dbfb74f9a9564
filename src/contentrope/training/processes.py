"""One update shared by several processes: DDP or FSDP2, as ``accelerate launch`` or ``torchrun`` was told.

Every process draws the same whole batch and computes its own rows of it. Each divides by the scored tokens of the
whole batch, so the sum over the processes is the loss one process would have found.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

from torch import Tensor, nn

from contentrope.errors import InputError
from contentrope.training import checkpoint as checkpoints
from contentrope.training import sharding
from contentrope.training.batches import Batch, mixed_seed
from contentrope.training.config import TrainConfig
from contentrope.training.steps import Stepper
from contentrope.training.team import AcceleratedTeam


class DistributedStepper(Stepper):
    """A model whose updates several processes compute together.

    All start from the first one's weights. With FSDP2 the model is sharded in place; :meth:`pack` makes it whole.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, accelerator: Any) -> None:
        self.accelerator, self.team = accelerator, AcceleratedTeam(accelerator)
        _check(config, self.team.size)
        plugin = _fsdp_plugin(accelerator)
        self.sharded = plugin is not None
        model.to(accelerator.device)
        if self.sharded:
            sharding.share_weights(model)  # DDP does so by itself
        by_hand = self.sharded and accelerator.device.type == "cpu"
        if by_hand:
            sharding.shard_on_cpu(model, plugin, self.team.size)
        super().__init__(model, config)
        if not by_hand:
            self.called, _ = accelerator.prepare(model, self.optimizer)

    def pack(self) -> checkpoints.Tensors:
        tensors: checkpoints.Tensors = {}
        for name, value in checkpoints.named_tensors(self.model, self.optimizer).items():
            whole = sharding.whole(value)
            if self.team.leads:
                tensors[name] = checkpoints.copied(whole)
        return tensors

    def unpack(self, tensors: checkpoints.Tensors) -> None:
        checkpoints.unpack(tensors, self.model, self.optimizer, sharding.placed)

    def _resolved(self, acceleration: str) -> str:
        return "none" if acceleration == "auto" else acceleration

    def _seed_of(self, step: int) -> int:
        return mixed_seed(self.config.seed, step, 1, self.team.rank)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        checkpoints.load_weights(self.model, weights, sharding.placed)

    def _parts(self, batch: Batch) -> Iterable[Batch]:
        mine = list(batch.parts(self.team.size))[self.team.rank]
        return mine.to(self.device).parts(self.config.accumulate)

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
        return sharding.whole(self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip))


def _check(config: TrainConfig, processes: int) -> None:
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
