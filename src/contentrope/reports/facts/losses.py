"""The loss while training: as a result file has it, and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contentrope.reports.axes import number_ticks
from contentrope.reports.drawing import Line, add_legend, figure_beside_legend, solid
from contentrope.reports.looks import Look, looks
from contentrope.reports.measured import mean_and_spread
from contentrope.reports.read import Results, runs_of, variants_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSSES = "losses"
"""The stem of the picture's file."""
MARKS = 8
"""A line: some tell lines apart without colour, all of them would hide the lines."""


def loss_curves(results: Results) -> dict[str, Line]:
    """By variant and step, over the seeds that tell the loss at the same steps as the first of them."""
    curves: dict[str, Line] = {}
    for name in variants_of(results):
        told = [{step: loss for step, loss in run.get("losses") or () if loss > 0} for run in runs_of(results, name)]
        first = next((list(curve) for curve in told if curve), [])
        alike = [curve for curve in told if list(curve) == first]
        if first:
            curves[name] = {step: mean_and_spread([curve[step] for curve in alike]) for step in first}
    return curves


def loss_figure(results: Results) -> Figure | None:
    """The loss by training step; None where no run has it."""
    curves = loss_curves(results)
    values = [value.mean for curve in curves.values() for value in curve.values()]
    if not values:
        return None
    styles = looks(list(curves))
    figure = figure_beside_legend(3.4, list(styles))
    axes = figure.subplots()
    for place, (name, look) in enumerate(styles.items()):
        _draw_losses(axes, curves[name], look, place)
    low, high = min(values) / 1.05, max(values) * 1.05
    ticks = number_ticks(low, high)
    axes.set(yscale="log", ylim=(low, high), xlabel="training step", ylabel="loss")
    axes.set_yticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    add_legend(figure, styles, paper=False)
    return figure


def _draw_losses(axes: Axes, curve: Line, look: Look, place: int) -> None:
    every = max(len(curve) // MARKS, 1)
    means = [value.mean for value in curve.values()]
    axes.plot(list(curve), means, markevery=(place % every, every), **solid(look))
