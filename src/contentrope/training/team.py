"""The processes that train one model together. Most of the time it is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class ProcessError(RuntimeError):
    """Another of the processes that train together has failed; its own message says why."""


class Team:
    """A team of one: what several processes must agree on is agreed already."""

    size = 1
    rank = 0

    @property
    def leads(self) -> bool:
        """True in the one process that writes and reports."""
        return self.rank == 0

    def anyone(self, flag: bool) -> bool:
        """Whether ``flag`` is true in any process. All must ask, and all get the same answer."""
        return flag

    def everyone(self, value: Any) -> list[Any]:
        """``value`` of every process, in order of rank. All must ask."""
        return [value]

    def together(self, action: Callable[[], Result]) -> Result:
        """Do ``action`` in every process; a failure in one is an error in all, so that none waits for it."""
        return action()


class AcceleratedTeam(Team):
    """The processes of one launch, as Accelerate set them up."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.size, self.rank = accelerator.num_processes, accelerator.process_index

    def anyone(self, flag: bool) -> bool:
        votes = torch.tensor(int(flag), device=self.accelerator.device)
        return bool(self.accelerator.reduce(votes, "sum").item())

    def everyone(self, value: Any) -> list[Any]:
        from accelerate.utils import gather_object  # type: ignore[import-untyped]

        return gather_object([value])

    def together(self, action: Callable[[], Result]) -> Result:
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
