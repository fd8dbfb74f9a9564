"""The processes that train one model together. Most of the time it is one."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed

from contentrope.errors import BackendError, InputError

Result = TypeVar("Result")


class ProcessError(RuntimeError):
    """Another of the processes that train together has failed; its own message says why."""


class Team:
    """The processes of one launch, as Accelerate set them up; without an ``accelerator``, this one alone.

    What the methods ask, all processes must ask.
    """

    def __init__(self, accelerator: Any = None) -> None:
        self.accelerator = accelerator
        self.size: int = 1 if accelerator is None else accelerator.num_processes
        self.rank: int = 0 if accelerator is None else accelerator.process_index

    @property
    def leads(self) -> bool:
        """True in the one process that writes and reports."""
        return self.rank == 0

    def anyone(self, flag: bool) -> bool:
        """Whether ``flag`` is true in any process; all get the same answer."""
        if self.accelerator is None:
            return flag
        votes = torch.tensor(int(flag), device=self.accelerator.device)
        return bool(self.accelerator.reduce(votes, "sum").item())

    def everyone(self, value: Any) -> list[Any]:
        """``value`` of every process, in order of rank."""
        if self.accelerator is None:
            return [value]
        from accelerate.utils import gather_object  # type: ignore[import-untyped]

        return gather_object([value])

    def together(self, action: Callable[[], Result]) -> Result:
        """Do ``action`` in every process; a failure in one is an error in all, so that none waits for it."""
        if self.accelerator is None:
            return action()
        problem: BaseException | None = None
        try:
            result = action()
        except (Exception, KeyboardInterrupt) as error:
            problem = error
        if not self.anyone(problem is not None):
            return result
        messages = self.everyone(None if problem is None else f"{type(problem).__name__}: {problem}")
        if problem is not None:
            raise problem
        failed = [f"process {rank} failed: {message}" for rank, message in enumerate(messages) if message is not None]
        raise ProcessError("; ".join(failed))

    def lead(self, action: Callable[[], object]) -> None:
        """Do ``action`` in the first process; its failure is an error in all."""
        self.together(lambda: action() if self.leads else None)


def launched_processes() -> int:
    """In how many processes ``accelerate launch`` or ``torchrun`` started this program."""
    given = os.environ.get("WORLD_SIZE", "1")
    if not given.isdecimal() or not int(given):
        raise InputError(f"WORLD_SIZE is {given!r}, not a number of processes; start them with accelerate launch")
    return int(given)


def launched_accelerator(on_cpu: bool) -> Any:
    """The Accelerator of this launch; what it holds open is closed when the program ends."""
    try:
        from accelerate import Accelerator  # type: ignore[import-untyped]
    except ImportError as error:
        raise BackendError("training in several processes needs accelerate: pip install contentrope[train]") from error
    atexit.register(_leave)
    # Precision is TrainConfig's to decide, whatever the launcher was told.
    return Accelerator(cpu=on_cpu, mixed_precision="no")


def local_device(device: str | torch.device) -> torch.device:
    """The device of this process: of several GPUs, each process has its own.

    >>> local_device("cpu")
    device(type='cpu')
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None and launched_processes() > 1:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def _leave() -> None:
    """Close the connections; a process that ends with open ones may be aborted, and look as if it had failed."""
    failed = hasattr(sys, "last_value")  # then the others may be waiting, and leaving could mean waiting for them
    if torch.distributed.is_initialized() and not failed:
        torch.distributed.destroy_process_group()
        # Gloo's threads let go of their last tensors only now, and abort the process if Python is gone by then.
        time.sleep(0.1)
