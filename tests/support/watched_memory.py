"""A memory checker for kernels that Triton's interpreter runs: what is wrong on a GPU without a word is an error here.

Every number a kernel reads or writes must belong to a tensor it was given. Programs of one launch run in any order on a
GPU, so no two may write to the same place, none may read what another writes, and none may add to what is there: sums
would depend on the order. Whole numbers must fit into what they are computed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.runtime import interpreter

NOBODY, SEVERAL = -1, -2


class BadAccessError(AssertionError):
    """A kernel reads or writes where it must not."""


def spans_of(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """The memory of tensors, each from its first number to behind its last; what overlaps is one."""
    spans: list[tuple[int, int]] = []
    for tensor in sorted(tensors, key=Tensor.data_ptr):
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        begin, end = tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()
        if spans and begin < spans[-1][1]:
            begin, end = spans[-1][0], max(spans.pop()[1], end)
        spans.append((begin, end))
    return spans


class Launch:
    """One launch: the memory of the tensors it was given, and for every byte where a number begins, which program
    wrote it and which read it."""

    def __init__(self, kernel: str, tensors: list[Tensor]) -> None:
        self.kernel = kernel
        self.begins, self.ends = np.array(spans_of(tensors), dtype=np.int64).reshape(-1, 2).T
        self.first = np.concatenate([[0], np.cumsum(self.ends - self.begins)])  # of each span's bytes among all
        self.writer, self.reader = (np.full(self.first[-1], NOBODY, dtype=np.int32) for _ in range(2))

    def _bytes(self, addresses: np.ndarray, mask: np.ndarray, size: int, doing: str) -> np.ndarray:
        """Which of the launch's bytes the numbers begin at."""
        asked = addresses[np.broadcast_to(mask, addresses.shape).astype(bool)].astype(np.int64)
        span = np.searchsorted(self.begins, asked, side="right") - 1
        outside = (span < 0) | (asked + size > self.ends[span])
        if outside.any():
            raise BadAccessError(f"{self.kernel} {doing} {int(outside.sum())} numbers that no tensor of its own has")
        return self.first[span] + asked - self.begins[span]

    def read(self, addresses: np.ndarray, mask: np.ndarray, size: int, program: int) -> None:
        places = self._bytes(addresses, mask, size, "reads")
        writer, reader = self.writer[places], self.reader[places]
        if ((writer != NOBODY) & (writer != program)).any():
            raise BadAccessError(f"{self.kernel}: a program reads what another one writes")
        self.reader[places] = np.where((reader == NOBODY) | (reader == program), program, SEVERAL)

    def write(self, addresses: np.ndarray, mask: np.ndarray, size: int, program: int) -> None:
        places = self._bytes(addresses, mask, size, "writes")
        writer, reader = self.writer[places], self.reader[places]
        if ((writer != NOBODY) & (writer != program)).any():
            raise BadAccessError(f"{self.kernel}: two programs write to the same place")
        if ((reader != NOBODY) & (reader != program)).any():
            raise BadAccessError(f"{self.kernel}: a program writes what another one has read")
        self.writer[places] = program


@contextmanager
def watched_memory() -> Iterator[list[str]]:
    """Gives the names of the kernels that were started, all of whose reads and writes are looked at."""
    builder, executor, shared = (
        interpreter.InterpreterBuilder,
        interpreter.GridExecutor,
        interpreter.interpreter_builder,
    )
    load, store, prepare = builder.create_masked_load, builder.create_masked_store, executor._init_args_hst
    started: list[str] = []
    launch: Launch

    def prepare_watched(self: Any, given: Any, named: Any) -> Any:
        nonlocal launch
        here = prepare(self, given, named)
        launch = Launch(self.fn.__name__, [x for x in here[0] if isinstance(x, Tensor) and x.numel()])
        started.append(launch.kernel)
        return here

    def load_watched(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        launch.read(pointers.data, mask.data, _bytes_each(pointers), _program(self))
        return load(self, pointers, mask, *rest)

    def store_watched(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        launch.write(pointers.data, mask.data, _bytes_each(pointers), _program(self))
        return store(self, pointers, value, mask, *rest)

    def refused(self: Any, *given: Any) -> Any:
        raise BadAccessError(f"{launch.kernel} adds to what is there, in any order")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", load_watched)
        patch.setattr(builder, "create_masked_store", store_watched)
        patch.setattr(builder, "create_atomic_rmw", refused)
        patch.setattr(builder, "create_atomic_cas", refused)
        patch.setattr(executor, "_init_args_hst", prepare_watched)
        patch.setattr(
            shared, "options", replace(shared.options, debug=True)
        )  # sums and products are compared in 64 bits
        yield started


def _program(builder: Any) -> int:
    (x, y, z), (width, height, _) = builder.grid_idx, builder.grid_dim
    return x + width * (y + height * z)


def _bytes_each(pointers: Any) -> int:
    return max(1, pointers.get_element_ty().primitive_bitwidth // 8)
