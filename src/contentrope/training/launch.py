"""In how many processes this program was started, and the stepper that goes with it."""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Any

import torch
import torch.distributed
from torch import nn

from contentrope.errors import BackendError, InputError
from contentrope.training.config import TrainConfig
from contentrope.training.steps import Stepper


def stepper_for(model: nn.Module, config: TrainConfig) -> Stepper:
    """The stepper for this launch: the plain one in one process, else one that shares the work.

    The model's device decides where several processes compute: see :func:`local_device`.
    """
    if _launched_processes() == 1:
        return Stepper(model, config)
    from contentrope.training.processes import DistributedStepper  # slow to import, and seldom needed

    return DistributedStepper(model, config, _accelerator(on_cpu=next(model.parameters()).device.type == "cpu"))


def local_device(device: str | torch.device) -> torch.device:
    """The device of this process: of several GPUs, each process has its own.

    >>> local_device("cpu")
    device(type='cpu')
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None and _launched_processes() > 1:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def _launched_processes() -> int:
    given = os.environ.get("WORLD_SIZE", "1")
    if not given.isdecimal() or not int(given):
        raise InputError(f"WORLD_SIZE is {given!r}, not a number of processes; start them with accelerate launch")
    return int(given)


def _accelerator(on_cpu: bool) -> Any:
    try:
        from accelerate import Accelerator  # type: ignore[import-untyped]
    except ImportError as error:
        raise BackendError("training in several processes needs accelerate: pip install contentrope[train]") from error
    atexit.register(_leave)
    # Precision is TrainConfig's to decide, whatever the launcher was told.
    return Accelerator(cpu=on_cpu, mixed_precision="no")


def _leave() -> None:
    """Close the connections; a process that ends with open ones may be aborted, and look as if it had failed."""
    failed = hasattr(sys, "last_value")  # then the others may be waiting, and leaving could mean waiting for them
    if torch.distributed.is_initialized() and not failed:
        torch.distributed.destroy_process_group()
        # Gloo's threads let go of their last tensors only now, and abort the process if Python is gone by then.
        time.sleep(0.1)
