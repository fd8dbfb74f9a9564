"""Tables and figures of an open model: perplexity by length, tasks by length, the past, short texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from experiments import drawing
from experiments.drawing import Plot
from experiments.growth.plot import curve_figure, distant_table, length_table, position_figure, position_table
from experiments.results import Results, cost_table, keys, numbers, runs, variants
from experiments.tables import Measured, Table, by_column, compared, measured

NEEDLES, LISTS = re.compile(r"niah_\w+"), re.compile(r"kv_(\d+)")
CAPTION = (
    "untouched: as it came, its limit is 8,192 tokens; rope: trained on as the others are; pi, ntk, yarn: frequencies "
    "rescaled; content: addresses (window: units that began so many tokens back are read as by the untouched model, "
    "without one positions are counted in each unit; address=none, random: the controls). The same training for all "
    "but the first. All lengths score the same tokens."
)
ALONG = "tokens read"


def title(results: Results) -> str:
    return "SmolLM2-135M-Instruct converted" if not results["config"].get("model") else "An open model converted"


def tables(results: Results) -> list[Table]:
    found = [
        perplexity_table(results),
        needle_table(results),
        list_table(results),
        *task_tables(results),
        short_table(results),
        position_table(results),
        distant_table(results, "tokens"),
        cost_table(results),
    ]
    return [table for table in found if table is not None]


def figures(results: Results) -> list[Plot]:
    reads = any(run.get("perplexity") for name in variants(results) for run in runs(results, name))
    found = [curve_figure(results, against_paper=False, along=ALONG) if reads else None]
    return [plot for plot in (*found, needle_figure(results), position_figure(results)) if plot is not None]


def perplexity_table(results: Results) -> Table:
    table = length_table(results, against_paper=False, along=ALONG)
    return replace(table, caption=f"{table.caption} {CAPTION}")


# --- tasks ---------------------------------------------------------------------------------------------------------


def task_sizes(results: Results) -> dict[str, list[int]]:
    """The lengths, or numbers of pairs, that each task was asked at."""
    return {task: [int(size) for size in keys(results, "tasks", task)] for task in keys(results, "tasks")}


def needles(results: Results, variant: str) -> dict[int, Measured]:
    """Share of what was asked for and found, all needle tasks of a length together; of runs that have all of them."""
    asked: dict[int, list[str]] = {}
    for task, sizes in task_sizes(results).items():
        for size in sizes if NEEDLES.fullmatch(task) else ():
            asked.setdefault(size, []).append(task)
    found = {size: [_together(run, tasks, size) for run in runs(results, variant)] for size, tasks in asked.items()}
    whole = {size: [value for value in values if value is not None] for size, values in sorted(found.items())}
    return {size: measured(values, len(runs(results, variant))) for size, values in whole.items() if values}


def _together(run: Mapping[str, Any], tasks: list[str], size: int) -> float | None:
    """The mean over the tasks that runs of this kind have at the size."""
    by_task = run.get("tasks", {})
    values = [by_task[task][str(size)] for task in tasks if str(size) in by_task.get(task, {})]
    return fmean(values) if values else None


def needle_table(results: Results) -> Table | None:
    curves = {name: found for name in variants(results) if (found := needles(results, name))}
    sizes = sorted({size for found in curves.values() for size in found})
    counts = {name: _tasks_of(results, name) for name in curves}
    rows: dict[str, dict[str, Any]] = {name: {"": name, "needle tasks": str(counts[name])} for name in curves}
    for size in sizes:
        column = compared({name: found[size] for name, found in curves.items() if size in found}, most=True)
        for name, cell in column.items():
            rows[name][f"{size:,}"] = cell
    caption = (
        "Share of what was asked for that was found, the needle tasks of a variant together, by tokens of the prompt."
    )
    return by_column(list(rows.values()), "Needles", caption) if curves else None


def _tasks_of(results: Results, variant: str) -> int:
    return len({task for run in runs(results, variant) for task in run.get("tasks", {}) if NEEDLES.fullmatch(task)})


def list_table(results: Results) -> Table | None:
    """Key-value lists, by the number of keys."""
    sizes = {task: found[0] for task, found in task_sizes(results).items() if LISTS.fullmatch(task)}
    columns = {f"{size:,} keys": (task, size) for task, size in sorted(sizes.items(), key=lambda both: both[1])}
    return _accuracies(results, columns, "Key-value lists", "Share of values that were found.")


def task_tables(results: Results) -> list[Table]:
    """One for each length, all tasks across."""
    by_size: dict[int, dict[str, tuple[str, int]]] = {}
    for task, sizes in task_sizes(results).items():
        for size in sizes if not LISTS.fullmatch(task) else ():
            by_size.setdefault(size, {})[task] = (task, size)
    caption = "Share of what was asked for that was found, in prompts of {:,} tokens."
    found = [_accuracies(results, by_size[size], "Tasks", caption.format(size)) for size in sorted(by_size)]
    return [table for table in found if table is not None]


def _accuracies(results: Results, columns: Mapping[str, tuple[str, int]], title: str, caption: str) -> Table | None:
    rows: dict[str, dict[str, Any]] = {name: {"": name} for name in variants(results)}
    for head, (task, size) in columns.items():
        found = {name: numbers(results, name, "tasks", task, str(size)) for name in rows}
        for name, cell in compared({name: value for name, value in found.items() if value}, most=True).items():
            rows[name][head] = cell
    shown = [row for row in rows.values() if len(row) > 1]
    return by_column(shown, title, caption) if shown else None


def needle_figure(results: Results) -> Plot | None:
    found = {name: needles(results, name) for name in variants(results)}
    curves = {name: drawing.finite(points) for name, points in found.items() if points}
    sizes = sorted({int(size) for points in curves.values() for size in points})
    if len(sizes) < 2:
        return None
    figure, (axes,), _ = drawing.lines([curves], 3.2)
    drawing.log_lengths(axes, sizes)
    axes.set(xlabel="tokens of the prompt", ylabel="found", ylim=(-0.03, 1.03))
    return Plot("needles", "Needles", "Share found in the needle tasks, one line per variant.", figure)


# --- short texts ---------------------------------------------------------------------------------------------------

SHORT = {"answer contains it": "contained", "exact": "exact", "F1": "f1"}


def short_table(results: Results) -> Table | None:
    """Was anything lost where the model was good before?"""
    rows: dict[str, dict[str, Any]] = {name: {"": name} for name in variants(results)}
    for head, key in SHORT.items():
        found = {name: numbers(results, name, "short", key) for name in rows}
        for name, cell in compared({name: value for name, value in found.items() if value}, most=True).items():
            rows[name][head] = cell
    shown = [row for row in rows.values() if len(row) > 1]
    return by_column(shown, "Short texts", "Questions of SQuAD on a single passage.") if shown else None
