"""A slice of the fuzz command, always the same, and faults that it must find within that slice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope import window
from contentrope.units import SegmenterState
from contentrope.units.table import map_tensors
from tests.fuzz import __main__ as command
from tests.fuzz import caches, files
from tests.fuzz.engine import Area, Distances, Failure, Program, first_failure, program_of, run_case, run_program
from tests.test_causality import LeakyContext

# Two to five seconds of one core each. Every range holds cases that find each fault planted below.
SLICES = {"streams": range(80), "caches": range(250, 400), "adapters": range(20, 60), "files": range(600)}
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SLICES)
def test_nothing_is_found(name: str, part: int) -> None:
    failure = first_failure(command.AREAS[name], SLICES[name][part::PARTS])
    assert failure is None, str(failure)


def leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries carry the address of a unit that is still open."""
    monkeypatch.setattr("contentrope.schemes.addressed.AddressedContext", LeakyContext)


def keep_what_other_rows_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def reorder(self: SegmenterState, index: torch.Tensor) -> SegmenterState:
        return map_tensors(self, lambda rows: rows.index_select(0, index))

    monkeypatch.setattr(SegmenterState, "reorder", reorder)


def leave_keys_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that is near again after a rollback."""

    def rolled_back(*given: Any, **named: Any) -> tuple[window.WindowState, None]:
        return window.rolled_back(*given, **named)[0], None

    monkeypatch.setattr("contentrope.cache.columns.rolled_back", rolled_back)


def turn_no_key_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contentrope.hf.state.rotate_back", lambda *given: None)


def refuse_with_errors_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverRaised(Exception):  # noqa: N818
        pass

    monkeypatch.setattr("contentrope.sealed.SafetensorError", NeverRaised)


def believe_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no checksum, taken for something that has one."""
    monkeypatch.setattr(files, "SILENT", ())


PLANTED: list[tuple[str, Callable[[pytest.MonkeyPatch], None]]] = [
    ("streams", leak),
    ("caches", keep_what_other_rows_opened),
    ("caches", leave_keys_rotated),
    ("adapters", turn_no_key_back),
    ("files", refuse_with_errors_of_others),
    ("files", believe_every_byte),
]


@pytest.mark.parametrize(("name", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_fault_is_found(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    area = command.AREAS[name]
    plant(monkeypatch)
    failure = first_failure(area, SLICES[name])
    assert failure is not None
    with pytest.raises(type(failure.error)):
        run_program(area, failure.program, failure.case)
    monkeypatch.undo()
    run_program(area, failure.program, failure.case)


def test_spare_room_that_is_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    append = cr.Cache.append

    def one_column_more(self: cr.Cache, *given: Any) -> Any:
        key, value = append(self, *given)
        self.values[given[0]][:, :, 0] += 0 * self.values[given[0]][:, :, -1]
        return key, value

    monkeypatch.setattr(cr.Cache, "append", one_column_more)
    assert first_failure(caches.AREA, range(20)) is not None


# --- the command itself ---


def counting(random: Random) -> Program:
    return Program({"n": random.randrange(100)}, tuple(("step", i) for i in range(6)))


def fails_with(*needed: int) -> Callable[[Program], Distances]:
    def run(program: Program) -> Distances:
        assert not {("step", i) for i in needed} <= set(program.steps), "these steps together"
        return {"distance": 0.5}

    return run


AREA = Area("made up", counting, fails_with(1, 4))


def test_a_case_is_drawn_from_its_number_alone() -> None:
    assert program_of(AREA, 7) == program_of(AREA, 7)
    drawn = [area.draw(Random(f"{area.name} 5")) for area in command.AREAS.values() for _ in range(2)]
    assert drawn[::2] == drawn[1::2]
    assert len({str(program_of(AREA, case)) for case in range(20)}) > 5


def test_a_failure_is_made_as_short_as_it_can_be_and_named_in_a_line() -> None:
    failure = run_case(AREA, 7)
    assert isinstance(failure, Failure)
    assert failure.kept == (1, 4)
    assert failure.program.steps == (("step", 1), ("step", 4))
    assert failure.line == "python -m tests.fuzz --only made up --case 7 --keep '1,4'"


def test_an_area_that_fails_is_told_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = replace(AREA, name="fine", run=fails_with(99))
    monkeypatch.setattr(command, "AREAS", {"made up": AREA, "fine": fine})
    assert command.main(["--minutes", "0.01", "--seed", "3"]) == 1
    out = capsys.readouterr().out
    assert out.count("--keep '1,4'") == 2 * command.MOST_FAILURES  # where it happened, and in the summary
    assert "made up: 5 cases, 5 failures" in out
    assert ", 0 failures" in out


def test_an_interrupt_ends_with_a_summary(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(program: Program) -> Distances:
        if program.settings["n"] > 50:
            raise KeyboardInterrupt
        return {"distance": 0.25}

    monkeypatch.setattr(command, "AREAS", {"made up": replace(AREA, run=run)})
    assert command.main(["--minutes", "1"]) == command.INTERRUPTED
    out = capsys.readouterr().out
    assert "seed " in out
    assert "cases in" in out


def test_one_case_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "AREAS", {"made up": AREA})
    again = ["--only", "made up", "--case", "7", "--keep"]
    assert command.main([*again, "1,2"]) == 0
    with pytest.raises(AssertionError, match="together"):
        command.main([*again, "1,4"])


@pytest.mark.parametrize(
    "arguments",
    [["--case", "3"], ["--keep", "1"], ["--only", "nothing"], ["--minutes", "-1"], ["--minutes", "nan"]],
    ids=" ".join,
)
def test_senseless_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(arguments)
    assert refused.value.code == 2
