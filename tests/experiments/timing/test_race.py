"""Contenders take turns; times, memory and failures of each are its own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from contentrope.errors import BackendError
from contentrope.training import Batch, DivergedError
from experiments.timing.race import REFUSALS, Gauge, race, reason
from tests.experiments.timing.tiny import Clock

BATCHES = [Batch({"ids": torch.full((1, 2), step)}, torch.full((1, 2), step)) for step in range(5)]
WARMUP = 2


class Machine(Gauge):
    """A device whose clock moves, and whose memory fills, as the steps say."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.clock = Clock()
        self.bytes = self.most = 0
        self.freed = 0

    def seconds(self) -> float:
        return self.clock.now

    def allocated(self) -> int:
        self.most = self.bytes
        return self.bytes

    def most_allocated(self) -> int:
        return self.most

    def use(self, count: int) -> None:
        self.bytes += count
        self.most = max(self.most, self.bytes)

    def free(self) -> None:
        self.freed += 1
        gc.collect()


class Fake:
    """Takes so many milliseconds a step, holds some bytes and needs more for a moment."""

    def __init__(
        self,
        machine: Machine,
        log: list[Any],
        name: str,
        times: list[float] | None = None,
        *,
        holds: int = 0,
        needs: int = 0,
        fails: dict[int, Exception] | None = None,
    ) -> None:
        self.machine, self.log, self.name = machine, log, name
        self.times, self.needs, self.fails = times or [1.0] * 5, needs, fails or {}
        self.model = torch.nn.Linear(2, 3)
        machine.use(holds)

    def update(self, batch: Batch, number: int) -> None:
        assert batch.targets[0, 0] == number
        self.log.append((self.name, number))
        if number in self.fails:
            raise self.fails[number]
        self.machine.use(self.needs)
        self.machine.clock.move(self.times[number])
        self.machine.use(-self.needs + (10 if number == 0 else 0))  # the optimizer's state stays


def run(
    makers: Callable[[Machine, list[Any]], dict[str, Any]], failures: tuple[type[Exception], ...] = REFUSALS
) -> tuple[dict[str, dict[str, Any]], list[Any], Machine]:
    machine, log = Machine(), list[Any]()
    ready = list[str]()
    found = race(makers(machine, log), BATCHES, WARMUP, machine, ready.append, failures)
    assert [name for name, number in log if number == 0 and name in ready] == ready
    return found, log, machine


def test_steps_are_made_in_turn_and_only_those_after_the_warm_up_count() -> None:
    times = {"rope": [50.0, 9.0, 4.0, 5.0, 9.0], "content": [70.0, 9.0, 8.0, 6.0, 7.0]}
    found, log, _ = run(
        lambda machine, log: {name: lambda name=name: Fake(machine, log, name, times[name]) for name in times}
    )
    assert log == [(name, number) for number in range(5) for name in ("rope", "content")]
    assert found["rope"]["steps_ms"] == pytest.approx([4, 5, 9])
    assert (found["rope"]["median_ms"], found["rope"]["mean_ms"]) == pytest.approx((5, 6))
    assert found["content"]["steps_ms"] == pytest.approx([8, 6, 7])
    assert found["rope"]["parameters"] == 9


def test_the_memory_of_the_others_does_not_count() -> None:
    found, _, machine = run(
        lambda machine, log: {
            "rope": lambda: Fake(machine, log, "rope", holds=100, needs=30),
            "content": lambda: Fake(machine, log, "content", holds=1000, needs=7),
        }
    )
    assert machine.bytes == 1120
    assert found["rope"]["peak_bytes"] == 100 + 10 + 30
    assert found["content"]["peak_bytes"] == 1000 + 10 + 7


def test_what_the_first_step_needs_to_compile_is_no_peak() -> None:
    def makers(machine: Machine, log: list[Any]) -> dict[str, Any]:
        class Compiles(Fake):
            def update(self, batch: Batch, number: int) -> None:
                self.needs = 500 if number == 0 else 5
                super().update(batch, number)

        return {"rope": lambda: Compiles(machine, log, "rope", holds=1)}

    assert run(makers)[0]["rope"]["peak_bytes"] == 1 + 10 + 5


def test_a_cpu_has_no_peak() -> None:
    machine, log = Machine(), list[Any]()
    found = race({"rope": lambda: Fake(machine, log, "rope")}, BATCHES, WARMUP, Gauge("cpu"), ready=lambda name: None)
    assert found["rope"]["peak_bytes"] is None


# --- failures ------------------------------------------------------------------------------------------------------

TOO_MUCH = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB."
)


@pytest.mark.parametrize("step", [0, 3])
def test_who_runs_out_of_memory_leaves_and_the_others_go_on(step: int) -> None:
    gone: list[weakref.ref[Any]] = []

    def makers(machine: Machine, log: list[Any]) -> dict[str, Any]:
        def broken() -> Fake:
            made = Fake(machine, log, "broken", fails={step: TOO_MUCH})
            gone.append(weakref.ref(made))
            return made

        return {"rope": lambda: Fake(machine, log, "rope"), "broken": broken}

    found, log, machine = run(makers)
    TOO_MUCH.__traceback__ = None  # this one outlives its catching
    assert found["broken"] == {
        "steps_ms": None,
        "median_ms": None,
        "mean_ms": None,
        "peak_bytes": None,
        "failed": "CUDA out of memory. Tried to allocate 2.00 GiB.",
    }
    assert len(found["rope"]["steps_ms"]) == 3
    assert [number for name, number in log if name == "broken"] == list(range(step + 1))
    assert machine.freed == 1
    gc.collect()
    assert gone[0]() is None


def test_a_model_that_is_gone_is_freed_before_the_others_go_on() -> None:
    alive: list[bool] = []
    machine, log = Machine(), list[Any]()
    gone: list[weakref.ref[Any]] = []

    class Failing(Fake):
        def update(self, batch: Batch, number: int) -> None:
            raise torch.OutOfMemoryError("out of memory")

    class Watching(Fake):
        def update(self, batch: Batch, number: int) -> None:
            alive.append(gone[0]() is not None)
            super().update(batch, number)

    def failing() -> Fake:
        made = Failing(machine, log, "broken")
        gone.append(weakref.ref(made))
        return made

    makers: dict[str, Any] = {"broken": failing, "rope": lambda: Watching(machine, log, "rope")}
    race(makers, BATCHES, WARMUP, machine, lambda name: None)
    assert alive == [False] * 5


def test_who_cannot_be_made_is_not_in_the_race() -> None:
    def broken() -> Any:
        raise BackendError("backend 'fused' needs CUDA tensors")

    found, log, _ = run(lambda machine, log: {"broken": broken, "rope": lambda: Fake(machine, log, "rope")})
    assert found["broken"]["failed"] == "backend 'fused' needs CUDA tensors"
    assert len(log) == 5


def test_other_failures_stop_the_race_unless_they_are_allowed_for() -> None:
    def makers(machine: Machine, log: list[Any]) -> dict[str, Any]:
        return {"broken": lambda: Fake(machine, log, "broken", fails={1: RuntimeError("cannot be captured")})}

    with pytest.raises(RuntimeError, match="captured"):
        race(makers(Machine(), []), BATCHES, WARMUP, Machine(), lambda name: None)
    found = race(makers(Machine(), []), BATCHES, WARMUP, Machine(), lambda name: None, (*REFUSALS, RuntimeError))
    assert found["broken"]["failed"] == "cannot be captured"


def test_a_loss_that_is_no_number_is_never_a_gap_in_the_table() -> None:
    machine = Machine()
    makers: dict[str, Any] = {"broken": lambda: Fake(machine, [], "broken", fails={1: DivergedError("loss nan")})}
    with pytest.raises(DivergedError):
        race(makers, BATCHES, WARMUP, machine, lambda name: None, (*REFUSALS, RuntimeError))


def test_a_reason_is_short_and_one_line() -> None:
    assert reason(RuntimeError("a\nb  c")) == "a b c"
    assert reason(RuntimeError()) == "RuntimeError"
    assert len(reason(RuntimeError("x" * 5000))) == 200
