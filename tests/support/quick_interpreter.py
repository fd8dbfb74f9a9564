"""Triton's interpreter in half the time.

It exchanges the functions of Triton's language for its own when a kernel is started, and again for every function that
the kernel calls. Most see the same modules, where that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
        yield


def _modules_of(function: Any) -> list[Any]:
    return [value for value in function.__globals__.values() if value is tl or value is tl.core]
