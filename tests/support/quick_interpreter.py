"""Triton's interpreter in half the time, and with products of bfloat16.

It exchanges the functions of Triton's language for its own when a kernel is started, and again for every function that
the kernel calls. Most see the same modules, where that changes nothing.

It keeps bfloat16 as 16-bit integers, and ``tl.dot`` multiplies those; here they are widened first, which is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter


@contextmanager
def quick_interpreter() -> Iterator[None]:
    exchange, start = interpreter._patch_lang, interpreter.GridExecutor.__call__
    exchanged: set[str] = set()

    def exchange_once(function: Any) -> Any:
        seen = {module.__name__ for module in (tl, tl.core) if module in _modules_of(function)}
        if seen <= exchanged:
            return None
        exchanged.update(seen)
        return exchange(function)

    def start_afresh(self: Any, *given: Any, **named: Any) -> None:
        exchanged.clear()
        start(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", exchange_once)
        patch.setattr(interpreter.GridExecutor, "__call__", start_afresh)
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
        yield


def dot(_: Any, a: Any, b: Any, added: Any, *precision: Any) -> Any:
    product = np.matmul(_numbers(a), _numbers(b), dtype=added.data.dtype)
    return interpreter.TensorHandle(product + added.data, added.dtype.scalar)


def _numbers(x: Any) -> Any:
    return (x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype.scalar == tl.bfloat16 else x.data


def _modules_of(function: Any) -> list[Any]:
    return [value for value in function.__globals__.values() if value is tl or value is tl.core]
