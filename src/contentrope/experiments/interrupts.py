"""Ctrl-C at a moment of the program's choosing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Hold a first Ctrl-C until the yielded function is called; a second one comes through at once.

    Only the main thread receives signals, and a handler somebody else installed is left alone.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    def raise_if_held() -> None:
        if held:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hold)
    try:
        yield raise_if_held
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    raise_if_held()
