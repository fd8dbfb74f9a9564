"""The command: ``python -m tests.fuzz --minutes 10``, and ``--only caches --case 123456`` to run one case again."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import torch

from contentrope.outputs import require_result
from contentrope.results import environment, write_json
from tests.fuzz import adapters, caches, files, streams
from tests.fuzz.engine import Area, Distances, Failure, merge, program_of, run_case, run_program

AREAS = {module.AREA.name: module.AREA for module in (streams, caches, adapters, files)}
CASES = 10**9
MOST_FAILURES = 5
"""Of an area, until it is left alone: one fault mostly makes many."""
SECONDS_BETWEEN_LINES = 20.0
INTERRUPTED = 130


class Fuzzing:
    """Areas in turn, by the time each has had, until the time is up."""

    def __init__(self, areas: Sequence[Area], seed: int, seconds: float) -> None:
        self.draws = {area.name: Random(f"{seed} {area.name}") for area in areas}
        self.left = {area.name: area for area in areas}
        self.spent = dict.fromkeys(self.draws, 0.0)
        self.cases = dict.fromkeys(self.draws, 0)
        self.worst: dict[str, Distances] = {name: {} for name in self.draws}
        self.failures: list[Failure] = []
        self.begun, self.seconds, self.told = time.monotonic(), seconds, 0.0

    def run(self) -> None:
        while self.left and (passed := time.monotonic() - self.begun) < self.seconds:
            self._tell(passed)
            name = min(self.left, key=self.spent.__getitem__)
            began = time.monotonic()
            self._take(self.left[name], run_case(self.left[name], self.draws[name].randrange(CASES)))
            self.spent[name] += time.monotonic() - began

    def _take(self, area: Area, found: Distances | Failure) -> None:
        self.cases[area.name] += 1
        if not isinstance(found, Failure):
            merge(self.worst[area.name], found)
            return
        self.failures.append(found)
        print(f"\nFAILED {found}", flush=True)
        if sum(failure.area == area.name for failure in self.failures) == MOST_FAILURES:
            print(f"{area.name}: {MOST_FAILURES} failures, no more of it", flush=True)
            del self.left[area.name]

    def _tell(self, passed: float) -> None:
        often = 0.5 if sys.stdout.isatty() else SECONDS_BETWEEN_LINES
        if passed - self.told < often:
            return
        self.told, left = passed, int(self.seconds - passed)
        counts = ", ".join(f"{name} {count}" for name, count in self.cases.items())
        line = f"{left // 60}:{left % 60:02} left; {counts}; {len(self.failures)} failures"
        print(f"\r{line}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)

    def found(self) -> dict[str, Any]:
        return {"cases": self.cases, "failures": [failure.line for failure in self.failures], "worst": self.worst}

    def summary(self) -> str:
        lines = [f"\n{sum(self.cases.values())} cases in {time.monotonic() - self.begun:.0f} s"]
        for name, count in self.cases.items():
            lines.append(f"{name}: {count} cases, {sum(f.area == name for f in self.failures)} failures")
            lines += [f"  {what}: {distance:.1e}" for what, distance in sorted(self.worst[name].items())]
        return "\n".join([*lines, *(f"FAILED {failure.line}" for failure in self.failures)])


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)  # such small models only wait for each other
    if options.case is not None:
        return run_again(AREAS[options.only], options.case, options.keep)
    seed = SystemRandom().randrange(CASES) if options.seed is None else options.seed
    if options.out is not None:
        require_result(options.out, lambda found: "fuzz" in found)
    areas = list(AREAS.values()) if options.only is None else [AREAS[options.only]]
    print(f"seed {seed}: python -m tests.fuzz --seed {seed} --minutes {options.minutes:g}", flush=True)
    fuzzing = Fuzzing(areas, seed, 60 * options.minutes)
    interrupted = False
    try:
        fuzzing.run()
    except KeyboardInterrupt:
        interrupted = True
    print(fuzzing.summary(), flush=True)
    if options.out is not None:
        asked = {"seed": seed, "minutes": options.minutes, "areas": [area.name for area in areas]}
        write_json(options.out, {"fuzz": asked, **fuzzing.found(), "environment": environment()})
    return 1 if fuzzing.failures else INTERRUPTED if interrupted else 0


def run_again(area: Area, case: int, keep: list[int] | None) -> int:
    """With the traceback of what fails."""
    program = program_of(area, case)
    program = program if keep is None else program.only(keep)
    print(f"{dict(program.settings)}\n{list(program.steps)}", flush=True)
    for what, distance in run_program(area, program, case).items():
        print(f"{what}: {distance:.1e}")
    print("nothing failed")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="the same seed draws the same cases; else a new one, which is printed")
    parser.add_argument("--only", choices=AREAS, help="one area of them all")
    parser.add_argument("--case", type=int, help="run this case of the area again")
    parser.add_argument("--keep", type=lambda text: [int(i) for i in text.split(",") if i], help="of its steps, these")
    parser.add_argument("--out", type=Path, help="a result file to write: how far runs lay apart at most, by area")
    options = parser.parse_args(arguments)
    if options.case is not None and options.only is None:
        parser.error("--case needs its area: --only " + "|".join(AREAS))
    if not 0 < options.minutes < math.inf:
        parser.error(f"argument --minutes: {options.minutes:g} is not a time to spend; write a number above 0")
    if options.keep is not None and options.case is None:
        parser.error("--keep names steps of a case: --case NUMBER")
    return options


if __name__ == "__main__":
    sys.exit(main())
