"""All variants of an experiment: skip what an earlier run finished, write the results after each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from contentrope.config import differences
from contentrope.errors import InputError
from contentrope.experiments.devices import require_device
from contentrope.experiments.suite.experiment import Evaluated, Experiment, Finished, Tell, Trained
from contentrope.experiments.suite.jobs import command_of, measure_all
from contentrope.experiments.suite.models import folder_of
from contentrope.outputs import OutputFolder
from contentrope.reports.checked import check_results
from contentrope.results import environment, read_json, write_json
from contentrope.training import StepReport
from contentrope.training import checkpoint as checkpoints
from contentrope.training.metrics import METRICS
from contentrope.training.together import TOGETHER

RESULTS = "results.json"


class Progress(Protocol):
    """What a run tells while it goes; ``name`` is a variant and its seed."""

    def planned(self, runs: int, kept: int, steps: int) -> None:
        """How many runs there are in all, how many an earlier command finished, and the updates of each."""

    def kept(self, name: str) -> None:
        """Finished by an earlier command."""

    def trained(self, name: str, report: StepReport) -> None:
        """Some more updates were made."""

    def evaluated(self, name: str, said: str) -> None:
        """Something was measured."""

    def finished(self, name: str, said: str) -> None:
        """The run is written; ``said`` is its result in short."""


def run(
    experiment: Experiment,
    out: Path,
    progress: Progress,
    device: str = "cpu",
    *,
    preset: str = "custom",
    jobs: int = 1,
    asked: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Train and evaluate every variant; write ``out/results.json`` after each run, and skip those it holds.

    ``asked`` are the options of the command, recorded so that a report can say how to repeat it.
    """
    require_device(device)
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise InputError(
            "every process of this launch would do the whole experiment; start it once, with --jobs for several "
            "variants at a time (`contentrope train` is the command for accelerate launch)"
        )
    experiment.check()
    with OutputFolder(out, command_of(experiment)) as held:
        results = _begin(experiment, out / RESULTS, preset)
        if asked is not None:
            results["asked"] = list(asked)
        missing = _missing(experiment, results, progress)
        _claim(held, out, missing)
        tell = _teller(experiment, results, out, progress, device)
        measure_all(experiment, missing, out, device, tell, jobs)
    return results


def _claim(held: OutputFolder, out: Path, missing: Mapping[str, list[int]]) -> None:
    """Refuse now what could not be written after the training."""
    if (out / RESULTS).exists():
        held.adopt(RESULTS)  # its settings say that it is of this experiment
    for variant, seeds in missing.items():
        for seed in seeds:
            folder = folder_of(Path(), variant, seed)
            held.claim(*(str(folder / name) for name in ("model", METRICS, f"{TOGETHER}.json")))


def _missing(experiment: Experiment, results: Mapping[str, Any], progress: Progress) -> dict[str, list[int]]:
    """The seeds still to be run, by variant."""
    missing: dict[str, list[int]] = {}
    kept = []
    for variant in experiment.variants:
        done = results["variants"].get(variant, {"runs": {}})["runs"]
        seeds = [seed for seed in range(experiment.seeds) if str(seed) not in done]
        kept += [(variant, seed) for seed in range(experiment.seeds) if seed not in seeds]
        if seeds:
            missing[variant] = seeds
    progress.planned(len(experiment.variants) * experiment.seeds, len(kept), experiment.steps)
    for variant, seed in kept:
        progress.kept(_name(experiment, variant, seed))
    return missing


def _teller(experiment: Experiment, results: dict[str, Any], out: Path, progress: Progress, device: str) -> Tell:
    """Passes on what happens, and writes every run that is finished."""
    spent, began = results["seconds"], time.perf_counter()

    def tell(event: Trained | Evaluated | Finished) -> None:
        name = _name(experiment, event.variant, event.seed)
        if isinstance(event, Trained):
            progress.trained(name, event.report)
        elif isinstance(event, Evaluated):
            progress.evaluated(name, event.said)
        else:
            results["variants"].setdefault(event.variant, {"runs": {}})["runs"][str(event.seed)] = event.run
            results["environment"] = environment(device)
            results["seconds"] = spent + time.perf_counter() - began  # of all commands so far, waiting included
            write_json(out / RESULTS, results)
            # Only now: until the result is written, the checkpoint is all there is of it.
            checkpoints.drop(folder_of(out, event.variant, event.seed) / "checkpoint")
            progress.finished(name, event.said)

    return tell


def _name(experiment: Experiment, variant: str, seed: int) -> str:
    return f"{variant}, seed {seed}" if experiment.seeds > 1 else variant


def _begin(experiment: Experiment, path: Path, preset: str) -> dict[str, Any]:
    """The results so far: those on disk if they are of the same experiment, else empty ones."""
    fresh: dict[str, Any] = {
        "experiment": experiment.name,
        "preset": preset,
        "config": experiment.settings(),
        "corpus": experiment.data(),
        "environment": None,
        "seconds": 0.0,
        "variants": {},
    }
    _take_in(fresh, path)
    return fresh


def _take_in(results: dict[str, Any], path: Path) -> None:
    """Add what earlier commands found, of these variants and seeds and of others."""
    if not path.exists():
        return
    stored = _stored(path)
    unlike = differences(_comparable(results), _comparable(stored))
    if unlike:
        raise InputError(f"{path} holds another run ({'; '.join(unlike)}); choose another folder, or delete it")
    config = results["config"]
    config["variants"] = list(dict.fromkeys([*stored["config"]["variants"], *config["variants"]]))
    config["seeds"] = max(stored["config"]["seeds"], config["seeds"])
    results["environment"] = stored.get("environment")
    results["seconds"] = stored.get("seconds", 0.0)
    results["variants"] = {variant: {"runs": dict(entry["runs"])} for variant, entry in stored["variants"].items()}


def _stored(path: Path) -> dict[str, Any]:
    stored = read_json(path)
    try:
        check_results(stored)
        if not isinstance(stored["config"].get("variants"), list) or not isinstance(stored["config"].get("seeds"), int):
            raise InputError("config needs variants and seeds")
    except InputError as error:
        raise InputError(
            f"{path} is not a result file of this experiment ({error}); choose another folder, or delete it"
        ) from error
    return stored


def _comparable(results: Mapping[str, Any]) -> dict[str, Any]:
    # Which variants and how many seeds were asked for does not change what each of them gives.
    settings = {key: value for key, value in results["config"].items() if key not in ("variants", "seeds")}
    return {"experiment": results["experiment"], "config": settings, "corpus": results["corpus"]}
