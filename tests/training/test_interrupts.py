"""Ctrl-C waits for the end of a step, but not forever, and not where it is none of our business."""

import signal
import threading
from collections.abc import Iterator

import pytest

from contentrope.training.loop import interrupts_held


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c(times: int, log: list[str]) -> None:
    with interrupts_held() as raise_if_held:
        raise_if_held()
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        log.append("step ended")
        raise_if_held()
        log.append("went on")


@pytest.mark.parametrize(("times", "expected"), [(1, ["step ended"]), (2, [])])
def test_the_first_waits_until_it_is_asked_for_and_the_second_does_not(times: int, expected: list[str]) -> None:
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c(times, log)
    assert log == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_came_after_the_last_step_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        signal.raise_signal(signal.SIGINT)


def test_one_in_another_process_is_taken_too() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_held(anyone=lambda held: True) as raise_if_held:
        raise_if_held()


def test_a_process_whose_handler_is_not_ours_is_asked_all_the_same() -> None:
    signal.signal(signal.SIGINT, lambda number, frame: None)
    asked = []
    with interrupts_held(anyone=lambda held: bool(asked.append(held))) as raise_if_held:
        raise_if_held()
    assert asked == [False, False]


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    received = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    with interrupts_held() as raise_if_held:
        signal.raise_signal(signal.SIGINT)
        raise_if_held()
    assert received == [signal.SIGINT]


def test_other_threads_may_use_it() -> None:
    entered = []

    def work() -> None:
        with interrupts_held() as raise_if_held:
            raise_if_held()
            entered.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [True]
