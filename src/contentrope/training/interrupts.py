"""Ctrl-C at a moment of the program's choosing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class HeldInterrupt(KeyboardInterrupt):
    """A Ctrl-C taken when it was asked for; of several processes, all take it at the same step."""


@contextmanager
def interrupts_held(anyone: Callable[[bool], bool] = bool) -> Iterator[Callable[[], None]]:
    """Hold a first Ctrl-C until the yielded function is called; a second one comes through at once.

    ``anyone`` tells whether any of several processes holds one. Only the main thread receives signals, and a
    handler somebody else installed is left alone.
    """
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    def raise_if_held() -> None:
        if anyone(held):
            raise HeldInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, hold)
    try:
        yield raise_if_held
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    raise_if_held()
