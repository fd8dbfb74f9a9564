"""The metrics of a run as files: one JSON line per recorded step and, if asked for, TensorBoard's events.

A run that was killed and resumed has every step once and in order.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contentrope.errors import BackendError, InputError
from contentrope.files import append_line, begin_log, writing
from contentrope.results import finite_or_none

METRICS = "metrics.jsonl"
MOST_LINES = 200
"""About as many are written for a run, however long, unless ``every`` is given."""
LEAST_STEPS = 10
"""Between two lines, unless ``every`` is given."""
RECORDED = ("step", "loss", "norm", "learning_rate", "tokens_per_second", "seconds")


@dataclass(frozen=True)
class StepReport:
    """Where a run stands after a step. ``loss`` is smoothed over about the last fifty steps."""

    step: int
    steps: int
    loss: float
    norm: float
    learning_rate: float
    tokens_per_second: float
    steps_per_second: float
    """Like the tokens, without the steps before the loss was first read: those compile."""
    seconds: float
    """Spent in steps, those before a resume included."""

    @property
    def seconds_left(self) -> float:
        return (self.steps - self.step) / max(self.steps_per_second, 1e-9)


def smoothed(before: float, value: float, steps: int) -> float:
    """The loss as it is reported: over about the last fifty steps, ``steps`` after it was ``before``.

    >>> smoothed(math.nan, 2.0, 1), smoothed(2.0, 1.0, 0)
    (2.0, 2.0)
    """
    return value if math.isnan(before) else value + 0.98**steps * (before - value)


class MetricsLog:
    """Writes ``folder/metrics.jsonl``, and ``folder/tensorboard`` if asked to.

    Hand it to ``train(..., metrics=log)``, or call :meth:`record` from ``on_step``. Of the steps it hears of it
    records one in ``every``, and the last; by default at most about two hundred of a run.

    >>> import tempfile
    >>> report = StepReport(1, 1, 2.5, 0.1, 3e-4, 1000.0, 10.0, 0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with MetricsLog(folder) as log:
    ...         log.record(report)
    ...     [line["loss"] for line in read_metrics(Path(folder, "metrics.jsonl"))]
    [2.5]
    """

    def __init__(self, folder: str | Path, tensorboard: bool = False, every: int | None = None) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise InputError(f"every must be an integer of at least 1, got {every!r}")
        self.folder, self.every = Path(folder), every
        self.path = self.folder / METRICS
        self._last: int | None = None
        """The last step recorded; None before the file has been looked at."""
        # Now, not after hours of training, is the time to hear that a package is missing.
        self._make_writer = _summary_writer() if tensorboard else None
        self._writer: Any = None

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def resume(self, step: int) -> None:
        """Go on after ``step``: what is recorded of later steps was given up."""
        lines = read_metrics(self.path) if self.path.exists() else []
        if foreign := [line for line in lines if line.keys() != set(RECORDED)]:
            raise InputError(f"{self.path} holds other metrics ({foreign[0]}); move it away, or choose another folder")
        kept = [line for line in lines if line["step"] <= step]
        # Also when all are kept: a last line that was cut short goes.
        begin_log(self.path, b"".join(_encoded(line) for line in kept))
        self._last = kept[-1]["step"] if kept else 0
        if self._make_writer is not None:
            self.close()
            self._writer = self._make_writer(str(self.folder / "tensorboard"), purge_step=step + 1)

    def record(self, report: StepReport) -> None:
        """Write the step down, if it is one of those to be recorded."""
        if self._last is None:
            self.resume(report.step - 1)
        every = self.every or max(LEAST_STEPS, math.ceil(report.steps / MOST_LINES))
        if report.step // every == (self._last or 0) // every and report.step != report.steps:
            return
        line = finite_or_none({name: getattr(report, name) for name in RECORDED})
        append_line(self.path, _encoded(line))
        self._last = report.step
        if self._writer is not None:
            self._record_scalars(line)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _record_scalars(self, line: dict[str, Any]) -> None:
        with writing(self.folder / "tensorboard"):
            for name in RECORDED[1:]:
                if line[name] is not None:
                    self._writer.add_scalar(f"train/{name}", line[name], line["step"])
            self._writer.flush()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``, in order of step; one that is being written, or was cut short, is left out."""
    path = Path(path)
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            lines.append(json.loads(line))
            lines[-1]["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number} is damaged ({error}); delete that line") from error
    return lines


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BackendError("TensorBoard files need tensorboard: pip install contentrope[train]") from error
    return SummaryWriter
