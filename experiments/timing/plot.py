"""Tables and figures of timing: milliseconds, overhead over RoPE and memory of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments import drawing
from experiments.drawing import FAINT, INK, Plot
from experiments.results import Results, all_runs, numbers, runs, values, variants
from experiments.tables import DASH, Cell, Measured, Table, by_column, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASELINE = "rope"
TITLES = {"none": "Eager", "compile": "Compiled", "graphs": "Compiled, the step one CUDA graph"}
PAPER = {"0.8M": 10.3, "85M": 4.4, "302M": 3.5, "680M": 2.0}
"""Overhead of content addresses in percent, on a Tesla T4."""
TARGETS = {"0.8M": 5.0, "85M": 2.5, "302M": 2.0, "680M": 1.5}
"""Percent at most, on a GPU."""
OUT_OF_MEMORY = "out of memory"
GIB = 2**30
LANES, HALF_LINE = 0.6, 0.38
"""Of a row's width: what the marks of all schemes take, and half of a target's line."""
CAPTION = (
    "Milliseconds of the median step; overhead: what it takes beyond RoPE's with the same acceleration, bold within "
    "the target, beside the paper's on a Tesla T4; memory: the most allocated at a time, against RoPE's."
)


def title(results: Results) -> str:
    return "Timing of training steps"


def tables(results: Results) -> list[Table]:
    return [*(overhead_table(results, name) for name in accelerations(results)), all_measurements(results)]


def accelerations(results: Results) -> list[str]:
    """Those that some run has, from the plainest on."""
    return [name for name in TITLES if any(name in run["timings"] for run in all_runs(results))]


def schemes(results: Results) -> list[str]:
    """What is compared with the baseline, in the order asked for."""
    timings = [by_scheme for run in all_runs(results) for by_scheme in run["timings"].values()]
    found = dict.fromkeys(scheme for by_scheme in timings for scheme in by_scheme)
    asked = [name for name in results["config"].get("schemes") or () if name in found]
    return [name for name in dict.fromkeys([*asked, *found]) if name != BASELINE]


def overhead(results: Results, row: str, acceleration: str, scheme: str) -> Measured | None:
    return numbers(results, row, "timings", acceleration, scheme, "overhead_percent")


def target(results: Results, row: str) -> float | None:
    """None on a CPU, which the targets are not meant for."""
    places = [run.get("environment") or results.get("environment") or {} for run in runs(results, row)]
    return TARGETS.get(row) if any(place.get("device") not in (None, "cpu") for place in places) else None


# --- tables --------------------------------------------------------------------------------------------------------


def overhead_table(results: Results, acceleration: str) -> Table:
    """Sizes down; times, overheads, the paper's overhead and the target, memory across."""
    sizes = [row for row in variants(results) if any(acceleration in run["timings"] for run in runs(results, row))]
    return by_column([_compared(results, row, acceleration) for row in sizes], TITLES[acceleration], CAPTION)


def _compared(results: Results, row: str, acceleration: str) -> dict[str, Cell | str]:
    cells: dict[str, Cell | str] = {"size": row, "sequences": _sequences(results, row)}
    names, most = (BASELINE, *schemes(results)), target(results, row)
    for scheme in names:
        more = overhead(results, row, acceleration, scheme)
        within = more is not None and most is not None and round(more.mean, 1) <= most
        cells[f"{scheme}, ms"] = _time(results, row, acceleration, scheme)
        cells[f"{scheme}, overhead"] = Cell(percent(more), "best" if within else "plain")
    for head, told in (("paper", PAPER.get(row)), ("target", most)):
        cells[head] = Cell("" if told is None else f"+{told:.1f}%", "paper")
    peaks = {name: numbers(results, row, "timings", acceleration, name, "peak_bytes") for name in names}
    base = peaks[BASELINE]
    for scheme, peak in peaks.items():
        if peak and base:
            size, times = number(peak.mean / GIB), number(peak.mean / base.mean)
            ratio = times if times == DASH else f"× {times}"
            cells |= {f"{scheme}, GiB": size} if scheme == BASELINE else {f"{scheme}, memory": ratio}
    return cells


def _sequences(results: Results, row: str) -> str:
    return next((f"{run['batch']:,} × {run['length']:,}" for run in runs(results, row) if run.get("batch")), "")


def _time(results: Results, row: str, acceleration: str, scheme: str) -> str:
    found = numbers(results, row, "timings", acceleration, scheme, "median_ms")
    reasons = list(filter(None, values(results, row, "timings", acceleration, scheme, "failed")))
    if reasons:
        return OUT_OF_MEMORY if OUT_OF_MEMORY in reasons[0] else "failed"
    return found.text() if found else ""


def all_measurements(results: Results) -> Table:
    """Every contender at every size, with what the other tables leave out; why something was not timed."""
    rows = [
        {"": f"{row}, {TITLES[name].lower()}, {scheme}", **_measured(results, row, "timings", name, scheme)}
        for row in variants(results)
        for name in accelerations(results)
        for scheme in (BASELINE, *schemes(results))
        if values(results, row, "timings", name, scheme)
    ]
    return by_column(rows, "All measurements", "The paper averages the timed steps: it has the overhead of means.")


def _measured(results: Results, row: str, *path: str) -> dict[str, str]:
    steps = [step for found in values(results, row, *path, "steps_ms") for step in found or ()]
    peak = numbers(results, row, *path, "peak_bytes")

    def text(name: str, decimals: int | None = None) -> str:
        found = numbers(results, row, *path, name)
        return found.text(decimals) if found else ""

    return {
        "parameters": text("parameters", 0),
        "median, ms": text("median_ms"),
        "mean, ms": text("mean_ms"),
        "fastest": number(min(steps)) if steps else "",
        "slowest": number(max(steps)) if steps else "",
        "overhead of means": percent(numbers(results, row, *path, "overhead_of_means_percent")),
        "peak, GiB": number(peak.mean / GIB) if peak else "",
        "failed": next(filter(None, values(results, row, *path, "failed")), ""),
    }


# --- figure --------------------------------------------------------------------------------------------------------


def figures(results: Results) -> list[Plot]:
    """Overhead by size, a panel per acceleration, the paper's as hollow marks, targets as dashed lines."""
    rows, styles = variants(results), drawing.styles_of(schemes(results))
    panels = {
        acceleration: {
            scheme: drawing.finite({at: overhead(results, row, acceleration, scheme) for at, row in enumerate(rows)})
            for scheme in styles
        }
        for acceleration in accelerations(results)
    }
    panels = {acceleration: found for acceleration, found in panels.items() if any(found.values())}
    if not panels:
        return []
    dashed = " (dashed: target)" if any(target(results, row) is not None for row in rows) else ""
    figure, all_axes = drawing.canvas(2.2 * len(panels), list(styles), rows=len(panels), sharex=True)
    for axes, (acceleration, found) in zip(all_axes, panels.items(), strict=True):
        axes.set_title(f"{TITLES[acceleration]}: overhead, %{dashed}", fontsize=10, loc="left")
        drawing.bands(axes.axvspan, len(rows))
        for place, (scheme, style) in enumerate(styles.items()):
            lane = LANES * ((place + 0.5) / len(styles) - 0.5)
            drawing.draw(axes, {at + lane: value for at, value in found[scheme].items()}, style, line=False)
        _prepare(axes, results, rows)
    drawing.legend(figure, styles, paper=any(row in PAPER for row in rows), line=False)
    return [Plot("overheads", next(TITLES[name] for name in panels), "Overhead over RoPE by size.", figure)]


def _prepare(axes: Axes, results: Results, rows: list[str]) -> None:
    axes.set(xlim=(-0.5, len(rows) - 0.5))
    axes.set_xticks(range(len(rows)), [drawing.drawable(row).replace(" at ", "\nat ") for row in rows])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.axhline(0, color=INK, lw=0.8, zorder=1)
    told: Mapping[int, float] = {at: PAPER[row] for at, row in enumerate(rows) if row in PAPER}
    axes.plot(list(told), list(told.values()), color=INK, marker="o", ls="", mfc="none", ms=8, mew=1.2)
    for at, row in enumerate(rows):
        if (most := target(results, row)) is not None:
            axes.plot([at - HALF_LINE, at + HALF_LINE], [most, most], color=FAINT, lw=1, ls="--", zorder=1)
