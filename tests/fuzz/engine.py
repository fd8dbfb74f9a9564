"""Cases by number: what is drawn for one, how it is run, and how a failing one is made shorter.

A case is an area and a number, nothing else, so that one short line runs it again on any machine. Hypothesis would
draw and shrink better, but its examples are named by a blob that is bound to one version of it and of the test. What
is lost is little here: a program is a list of steps of which any part is a program too, so leaving steps out shrinks
it, and the line only has to name those that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch

Step = tuple[Any, ...]
Distances = dict[str, float]
"""The largest difference found, relative to the largest number expected, by what it was measured on."""


class Program(NamedTuple):
    settings: Mapping[str, Any]
    steps: tuple[Step, ...]
    """Any of them may be left out: a step says nothing of the others."""

    def only(self, kept: Iterable[int]) -> Program:
        return self._replace(steps=tuple(self.steps[i] for i in kept))


@dataclass(frozen=True)
class Area:
    name: str
    draw: Callable[[Random], Program]
    run: Callable[[Program], Distances]
    """Raises whatever it likes where something does not hold."""


@dataclass(frozen=True)
class Failure:
    area: str
    case: int
    kept: tuple[int, ...] | None
    """The steps that are enough to fail; None: all of them."""
    program: Program
    error: Exception

    @property
    def line(self) -> str:
        """What runs it again."""
        steps = "" if self.kept is None else f" --keep '{','.join(map(str, self.kept))}'"
        return f"python -m tests.fuzz --only {self.area} --case {self.case}{steps}"

    def __str__(self) -> str:
        said = " ".join(f"{type(self.error).__name__}: {self.error}".split())
        return f"{self.line}\n  {said[:400]}\n  {dict(self.program.settings)}\n  {list(self.program.steps)}"


def program_of(area: Area, case: int) -> Program:
    return area.draw(Random(f"{area.name} {case}"))


def run_program(area: Area, program: Program, case: int) -> Distances:
    torch.manual_seed(case)  # of whatever draws without being told from what
    return area.run(program)


def run_case(area: Area, case: int) -> Distances | Failure:
    program = program_of(area, case)
    try:
        return run_program(area, program, case)
    except Exception as error:
        return shorter(Failure(area.name, case, None, program, error), area)


def shorter(failure: Failure, area: Area) -> Failure:
    """Fewer steps that fail too, though maybe in another way: each is left out in turn, the last first."""
    whole, kept = failure.program, tuple(range(len(failure.program.steps)))
    for step in reversed(kept):
        fewer = tuple(i for i in kept if i != step)
        program = whole.only(fewer)
        try:
            run_program(area, program, failure.case)
        except Exception as error:
            kept, failure = fewer, Failure(area.name, failure.case, fewer, program, error)
    return failure


def first_failure(area: Area, cases: Iterable[int]) -> Failure | None:
    """Of these cases. The suite runs few of them, and always the same."""
    found = (run_case(area, case) for case in cases)
    return next((f for f in found if isinstance(f, Failure)), None)


def merge(into: Distances, found: Distances) -> None:
    for name, distance in found.items():
        into[name] = max(into.get(name, 0.0), distance)
