"""What ``contentrope train`` and ``finetune`` share: a run is begun or continued once, gathered, written, shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from contentrope.cli.options import is_first_process
from contentrope.cli.progress import progress_display
from contentrope.cli.tables import SavingConsole, say
from contentrope.config import differences
from contentrope.errors import InputError
from contentrope.outputs import OutputFolder
from contentrope.results import environment, read_json, write_json
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, TrainConfig, train
from contentrope.training import checkpoint as checkpoints
from contentrope.training.metrics import METRICS


class TrainOptions(TrainConfig):
    """Settings of the training."""

    def __post_init__(self) -> None:
        """Left to :meth:`checked`: tyro would wrap an error raised while it parses in words of its own."""

    def checked(self) -> TrainConfig:
        return TrainConfig(**vars(self))


def run_once(
    command: str,
    out: Path,
    settings: Mapping[str, Any],
    inputs: Iterable[str],
    work: Callable[[Console], Mapping[str, Any]],
    summary: Callable[[Any], list[str]],
    advice: str,
) -> None:
    """Write what ``work`` finds to ``out/COMMAND.json``, unless it is there already, and print a summary of it.

    ``settings`` decide the numbers: another run is refused. Of several processes all work, the first one writes.
    """
    console, result = SavingConsole(quiet=not is_first_process()), out / f"{command}.json"
    with OutputFolder(out, command, leads=is_first_process()) as folder:
        if holds_this_run(result, settings):
            say(console, f"{out} is finished already.")
        else:
            folder.claim("model", result.name, METRICS, inputs=inputs)
            found = work(console)
            if is_first_process():
                write_json(result, {**settings, **found})
                checkpoints.drop(out / "checkpoint")  # the result says that the run is finished
    if is_first_process():
        with named_if_damaged(result) as stored:
            lines = summary(stored)
        written = (f"written: {out / name}" for name in ("model", METRICS, result.name))
        for line in (*lines, *written, advice):
            say(console, line)


def fit(
    stepper: Stepper,
    batches: Batches,
    out: Path,
    name: str,
    console: Console,
    settings: Mapping[str, Any],
    *,
    save_every: int,
    tensorboard: bool = False,
) -> StepReport:
    """The last step of a training with checkpoints and metrics in ``out``, continued where one was stopped."""
    with MetricsLog(out, tensorboard) as metrics, progress_display(console) as progress:
        return train(
            stepper,
            batches,
            checkpoint=out / "checkpoint",
            on_step=lambda report: progress.trained(name, report),
            save_every=save_every,
            settings={name: value for name, value in settings.items() if name != "train"},
            metrics=metrics,
        )


def whole_model(stepper: Stepper, fresh: Callable[[], nn.Module]) -> Any:
    """The trained model in one piece, in the first process; the others only hand over their share of it."""
    if stepper.team.size == 1:
        return stepper.model
    tensors = stepper.pack()
    if not is_first_process():
        return None
    model = fresh()
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    checkpoints.load_weights(model, weights, lambda value, like: value)
    return model


def outcome(model: nn.Module, last: StepReport, stepper: Stepper, device: str) -> dict[str, Any]:
    """What a training took, as JSON."""
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "tokens_per_second": last.tokens_per_second,
        "acceleration": stepper.acceleration,
        "processes": stepper.team.size,
        "environment": environment(device),
    }


def holds_this_run(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the file that a run writes last is there; refused if it was written by another one."""
    if not path.exists():
        return False
    stored = read_json(path)
    if not isinstance(stored, dict):
        command = f"contentrope {path.stem}"
        raise InputError(f"{path} is not what `{command}` writes; choose another folder, or delete it")
    unlike = differences(settings, {name: stored.get(name) for name in settings})
    if unlike:
        raise InputError(f"{path.parent} holds another finished run ({'; '.join(unlike)}); choose another folder")
    return True


@contextmanager
def named_if_damaged(path: Path) -> Iterator[Any]:
    """What a finished run has written about itself; where something is missing or no number, the file is named."""
    try:
        yield read_json(path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is damaged ({type(error).__name__}: {error}); restore it from a copy, or delete it to train again"
        ) from error
