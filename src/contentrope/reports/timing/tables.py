"""The tables of the experiment: one for each acceleration, and one of everything that was measured."""

from __future__ import annotations

from collections.abc import Callable

from contentrope.reports.measured import Measured, number
from contentrope.reports.read import Results, runs_of, variants_of
from contentrope.reports.tables import Cell, Table
from contentrope.reports.timing.paper import printed_overhead, target
from contentrope.reports.timing.read import (
    BASELINE,
    OUT_OF_MEMORY,
    accelerations_of,
    failures,
    measured,
    memory_ratio,
    overhead,
    schemes_of,
    step_time,
    values,
)

TITLES = {"none": "Eager", "compile": "Compiled", "graphs": "Compiled, the step one CUDA graph"}
GIB = 2**30
Column = Callable[[str], Cell]


def percent(value: float) -> str:
    """
    >>> percent(10.26), percent(-0.34), percent(-0.01)
    ('+10.3%', '−0.3%', '0.0%')
    """
    size = number(abs(value), 1)
    return f"{'' if size == number(0, 1) else '+' if value > 0 else '−'}{size}%"


def with_spread(value: Measured | None) -> str:
    if value is None:
        return ""
    return percent(value.mean) + ("" if value.spread is None else f" ± {number(value.spread, 1)}")


def reaches(value: Measured, most: float | None) -> bool:
    """Whether an overhead stays within a target, as printed."""
    return most is not None and round(value.mean, 1) <= most


# --- one acceleration ----------------------------------------------------------------------------------------------


def overhead_table(results: Results, acceleration: str) -> Table:
    """Rows down; times, overheads, the paper's overhead and the target, memory across. Empty columns are left out."""
    rows = [row for row in variants_of(results) if any(acceleration in run["timings"] for run in runs_of(results, row))]
    columns: dict[str, Column] = {"sequences": lambda row: _sequences(results, row)}
    for scheme in (BASELINE, *schemes_of(results)):
        columns |= _times(results, acceleration, scheme)
    columns["paper"] = lambda row: _told(printed_overhead(row))
    columns["target"] = lambda row: _told(target(results, row))
    for scheme in (BASELINE, *schemes_of(results)):
        columns |= _memory(results, acceleration, scheme)
    filled = {title: [column(row) for row in rows] for title, column in columns.items()}
    shown = {title: cells for title, cells in filled.items() if any(cell.text for cell in cells)}
    lines = zip(*shown.values(), strict=True)
    return Table(["size", *shown], [[Cell(row), *line] for row, line in zip(rows, lines, strict=True)])


def _times(results: Results, acceleration: str, scheme: str) -> dict[str, Column]:
    failed = {(at.row, at.scheme): at.reason for at in failures(results) if at.acceleration == acceleration}

    def time(row: str) -> Cell:
        found = step_time(results, row, acceleration, scheme)
        if found is None and (row, scheme) in failed:
            return Cell(OUT_OF_MEMORY if OUT_OF_MEMORY in failed[row, scheme] else "failed")
        return Cell(found.text if found else "")

    def more(row: str) -> Cell:
        found = overhead(results, row, acceleration, scheme)
        within = found is not None and reaches(found, target(results, row))
        return Cell(with_spread(found), "strong" if within else "plain")

    columns: dict[str, Column] = {f"{scheme}, ms": time, f"{scheme}, overhead": more}
    return columns


def _memory(results: Results, acceleration: str, scheme: str) -> dict[str, Column]:
    def gib(row: str) -> Cell:
        found = measured(results, row, acceleration, scheme, "peak_bytes")
        return Cell(number(found.mean / GIB) if found else "")

    def ratio(row: str) -> Cell:
        found = memory_ratio(results, row, acceleration, scheme)
        return Cell("" if found is None else f"× {found:.2f}")

    return {f"{scheme}, GiB": gib} if scheme == BASELINE else {f"{scheme}, memory": ratio}


def _sequences(results: Results, row: str) -> Cell:
    sizes = next(((run["batch"], run["length"]) for run in runs_of(results, row) if run.get("batch")), None)
    return Cell("" if sizes is None or sizes[1] is None else f"{sizes[0]:,} × {sizes[1]:,}")


def _told(overhead: float | None) -> Cell:
    return Cell("" if overhead is None else percent(overhead), "emphasis")


# --- everything ----------------------------------------------------------------------------------------------------


def all_measurements(results: Results) -> Table:
    """Every contender in every row, with what the other tables leave out."""
    head = ["", "parameters", "median, ms", "mean, ms", "fastest", "slowest", "overhead of means", "peak, GiB"]
    lines = [
        [Cell(f"{row}, {TITLES[acceleration].lower()}, {scheme}"), *_line(results, row, acceleration, scheme)]
        for row in variants_of(results)
        for acceleration in accelerations_of(results)
        for scheme in (BASELINE, *schemes_of(results))
        if step_time(results, row, acceleration, scheme)
    ]
    return Table(head, lines)


def _line(results: Results, row: str, acceleration: str, scheme: str) -> list[Cell]:
    where = results, row, acceleration, scheme
    parameters, peak = measured(*where, "parameters"), measured(*where, "peak_bytes")
    steps = [step for found in values(*where, "steps_ms") for step in found]
    means = measured(*where, "mean_ms"), measured(*where, "overhead_of_means_percent")
    texts = [
        f"{parameters.mean:,.0f}" if parameters else "",
        *(found.text if found else "" for found in (step_time(*where), means[0])),
        number(min(steps)),
        number(max(steps)),
        with_spread(means[1]),
        number(peak.mean / GIB) if peak else "",
    ]
    return list(map(Cell, texts))
