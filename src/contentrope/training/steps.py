"""One update of the weights: eager, compiled, or the whole of it as one CUDA graph.

A small model spends its time on starting kernels. Captured once and replayed, an update costs one launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from contentrope.errors import InputError
from contentrope.sealed import fingerprint
from contentrope.training import checkpoint as checkpoints
from contentrope.training.batches import IGNORED, Batch, mixed_seed
from contentrope.training.config import TrainConfig, computing_in
from contentrope.training.team import Team, launched_processes

UPDATES_BEFORE_CAPTURE = 3
"""Ordinary updates first: kernels get compiled and the optimizer makes its state."""


def stepper_for(model: nn.Module, config: TrainConfig) -> Stepper:
    """The stepper for this launch: the plain one in one process, else one that shares the work.

    The model's device decides where several processes compute: see :func:`~contentrope.training.local_device`.
    """
    if launched_processes() == 1:
        return Stepper(model, config)
    from contentrope.training.distributed import DistributedStepper  # slow to import, and seldom needed

    return DistributedStepper(model, config)


class DivergedError(RuntimeError):
    """The loss or its gradient became NaN or infinite."""


class Stepper:
    """A model and its optimizer. ``loss`` and ``norm`` hold the last update's values on the device."""

    team = Team()
    _whole = staticmethod(lambda value: value)
    """All of a tensor that may be spread over processes. All must ask."""
    _placed = staticmethod(lambda value, like: value)
    """A whole tensor, spread as ``like`` is."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.model, self.config = model, config
        self.called: nn.Module = model
        """What a forward pass goes through: the model, or what wraps it in several processes."""
        self.device = next(model.parameters()).device
        self.acceleration = self._resolved(config.acceleration)
        self.optimizer = _optimizer(model, config, self.device)
        self.loss_of: Any = self._loss_of
        if self.acceleration != "none":
            self.loss_of = torch.compile(self._loss_of, fullgraph=self.device.type == "cuda", dynamic=False)
        precision = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        self.loss = torch.zeros((), device=self.device, dtype=precision)
        self.norm = torch.zeros((), device=self.device, dtype=precision)
        self.updates = 0
        self.updating = False
        """True while only some of the weights have moved: not a state to save."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: Batch | None = None
        self._frozen: str | None = None

    @property
    def reads_every(self) -> int:
        """Steps between two readings of the loss; reading it waits for the device."""
        return 50 if self.acceleration == "graphs" else 1

    def update(self, batch: Batch, step: int) -> None:
        """One update at the learning rate and random state of ``step``."""
        _seed(self._seed_of(step), self.device)
        self._set_learning_rate(self.config.learning_rate_at(step))
        if self.acceleration == "graphs":
            self._update_captured(batch)
        else:
            self._backward(batch)
            self.require_finite(step)
            self.updating = True
            self.optimizer.step()
            self.updating = False
        self.updates += 1

    def require_finite(self, step: int) -> None:
        """Wait for the device and stop if the last loss or gradient is no number."""
        loss, norm = self.loss.item(), self.norm.item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergedError(
                f"step {step + 1}: loss {loss}, gradient norm {norm}; the last checkpoint is as before. "
                f"Start again with a learning_rate below {self.config.learning_rate} or a longer warmup"
            )

    def restart(self, seed: int, weights: Mapping[str, Tensor]) -> None:
        """Begin again with other weights, all in place: what was compiled and captured serves the next run too."""
        self.config = replace(self.config, seed=seed)
        checkpoints.load_weights(self.model, weights, self._placed)
        self._frozen = None
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def pack(self) -> checkpoints.Tensors:
        """What a checkpoint holds, copied; of several processes, only the one that leads gets it. All must ask."""
        named = checkpoints.named_tensors(self.model, self.optimizer)
        whole = ((name, self._whole(value)) for name, value in named.items())
        return {name: checkpoints.copied(value) for name, value in whole if self.team.leads}

    def frozen(self) -> str | None:
        """A fingerprint of the weights that are not trained; None if all are, and in processes that do not lead.

        All must ask. It is found once: nothing here changes them.
        """
        if self._frozen is None and (still := checkpoints.frozen(self.model)):
            whole = ((name, self._whole(value)) for name, value in still.items())
            self._frozen = fingerprint(pair for pair in whole if self.team.leads)
        return self._frozen if self.team.leads else None

    def unpack(self, tensors: checkpoints.Tensors) -> None:
        """Go on from what :meth:`pack` gave, in as many processes as it may have been."""
        checkpoints.unpack(tensors, self.model, self.optimizer, self._placed)
        self.updates, self._graph, self._static = 0, None, None  # captured with tensors that have been replaced

    def _update_captured(self, batch: Batch) -> None:
        # From the first update on: a batch with other strides would be compiled anew, in the midst of the capture.
        if self._static is None:
            self._static = batch.map(lambda x: x.clone(memory_format=torch.contiguous_format))
        self._static.copy_from(batch)
        if self.updates < UPDATES_BEFORE_CAPTURE:
            # On a side stream, as the capture that follows wants it.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._backward(self._static)
                self.optimizer.step()
            torch.cuda.current_stream().wait_stream(stream)
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._backward(self._static)
                self.optimizer.step()
        self._graph.replay()

    def _backward(self, batch: Batch) -> None:
        """Gradients of the mean loss over all scored tokens, each by its weight, clipped."""
        self.optimizer.zero_grad(set_to_none=True)
        scored = batch.scored
        total = torch.zeros_like(self.loss)
        parts = list(self._parts(batch))
        with computing_in(self.config.precision, self.device):
            for index, part in enumerate(parts):
                with self._exchanging(index == len(parts) - 1):
                    loss = self.loss_of(part.inputs, part.targets, part.weights) / scored
                    self._backward_of(loss)
                total += loss.detach()
        self.loss.copy_(self._summed(total))
        self.norm.copy_(self._clipped())

    # --- what several processes do otherwise

    def _resolved(self, acceleration: str) -> str:
        if acceleration == "auto":
            return "graphs" if self.device.type == "cuda" else "none"
        if acceleration == "graphs" and self.device.type != "cuda":
            raise InputError(f"acceleration 'graphs' needs a CUDA device, the model is on {self.device}; use auto")
        return acceleration

    def _seed_of(self, step: int) -> int:
        return mixed_seed(self.config.seed, step, 1)

    def _parts(self, batch: Batch) -> Iterable[Batch]:
        return batch.parts(self.config.accumulate)

    def _exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Around a part of the batch: gradients are exchanged with the ``last`` only."""
        return nullcontext()

    def _backward_of(self, loss: Tensor) -> None:
        loss.backward()

    def _summed(self, loss: Tensor) -> Tensor:
        return loss

    def _clipped(self) -> Tensor:
        """The norm of the gradient, which is clipped."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)

    def _loss_of(self, inputs: dict[str, Tensor], targets: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            return self._cross_entropy(inputs, targets, reduction="sum")
        return (self._cross_entropy(inputs, targets, reduction="none") * weights.flatten()).sum()

    def _cross_entropy(self, inputs: dict[str, Tensor], targets: Tensor, *, reduction: str) -> Tensor:
        arguments = dict(inputs)
        logits = self.called(arguments.pop("ids"), **arguments).flatten(0, 1)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction=reduction)

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["factor"])  # where the captured update looks for it
            else:
                group["lr"] = rate * group["factor"]


def _seed(seed: int, device: torch.device) -> None:
    """As ``torch.manual_seed``, which takes longer than an update: it asks for devices of every kind."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def _optimizer(model: nn.Module, config: TrainConfig, device: torch.device) -> optim.AdamW:
    """Its groups hold the trained parameters by how fast they learn, which a model may say by ``rate_factor(name)``."""
    factor_of = getattr(model, "rate_factor", lambda name: 1.0)
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            by_factor.setdefault(factor_of(name), []).append(parameter)
    groups: list[dict[str, Any]] = [{"params": found, "factor": factor} for factor, found in by_factor.items()]
    options: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if device.type == "cuda":
        rates = [{**group, "lr": torch.tensor(config.learning_rate, device=device)} for group in groups]
        return optim.AdamW(rates, **options, fused=True, capturable=True)
    try:
        return optim.AdamW(groups, **options, fused=True)
    except RuntimeError:  # a device without the fused kernel
        return optim.AdamW(groups, **options)
