"""All variants of an experiment: skip what an earlier run finished, write the results after each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contentrope.cli.options import is_first_process
from contentrope.cli.progress import Lines
from contentrope.config import differences
from contentrope.devices import require_device
from contentrope.errors import InputError
from contentrope.outputs import OutputFolder
from contentrope.results import environment, write_json
from contentrope.training import checkpoint as checkpoints
from contentrope.training.metrics import METRICS
from contentrope.training.together import TOGETHER
from experiments.experiment import ASKED_FOR, Evaluated, Event, Experiment, Measured, Tell, Trained
from experiments.jobs import command_of, measure_all
from experiments.models import folder_of
from experiments.results import ResultError, read

RESULTS = "results.json"


def run(
    experiment: Experiment,
    out: Path,
    progress: Lines,
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
    _require_jobs(experiment, jobs)
    experiment.check()
    with OutputFolder(out, command_of(experiment)) as held:
        results = _begin(experiment, out / RESULTS, preset)
        if asked is not None:
            results["asked"] = list(asked)
        missing = _missing(experiment, results, progress)
        _claim(held, out, missing)
        measure_all(experiment, missing, out, device, _teller(experiment, results, out, progress, device), jobs)
    return results


def _require_jobs(experiment: Experiment, jobs: int) -> None:
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    if jobs > 1 and experiment.alone:
        raise InputError(
            f"variants of {experiment.name} measured beside each other would disturb each other, got {jobs} jobs; "
            "leave out --jobs"
        )
    if is_launched():
        raise InputError(
            "every process of this launch would do the whole experiment; start it once, with --jobs for several "
            "variants at a time (`contentrope train` is the command for accelerate launch)"
        )


def is_launched() -> bool:
    """Whether this is one of several processes, of ``accelerate launch`` or ``torchrun``."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def train_in_processes(experiment: Experiment, out: Path, progress: Lines, device: str) -> None:
    """Train what is missing, every run in all processes of this launch; ``run`` in one process measures it then."""
    require_device(device)
    experiment.check()
    with OutputFolder(out, command_of(experiment), leads=is_first_process()) as held:
        results = _begin(experiment, out / RESULTS, "custom")
        missing = _missing(experiment, results, progress)
        _claim(held, out, missing)
        tell = _teller(experiment, results, out, progress, device)
        for variant, seeds in missing.items():
            experiment.train(variant, seeds, out, device, tell)


def _begin(experiment: Experiment, path: Path, preset: str) -> dict[str, Any]:
    """The results so far: those on disk if they are of the same experiment, of these variants and of others."""
    results: dict[str, Any] = {
        "experiment": experiment.name,
        "preset": preset,
        "config": experiment.settings(),
        "corpus": experiment.data(),
        "environment": None,
        "seconds": 0.0,
        "variants": {},
    }
    if not path.exists():
        return results
    try:
        stored, config = read(path), results["config"]
        unlike = differences(_comparable(results), _comparable(stored))
        for name in ("variants", "measures"):
            if name in config:
                config[name] = list(dict.fromkeys([*stored["config"][name], *config[name]]))
        config["seeds"] = max(stored["config"]["seeds"], config["seeds"])
        results["variants"] = {variant: {"runs": dict(entry["runs"])} for variant, entry in stored["variants"].items()}
    except (ResultError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is not a result file of this experiment ({error}); choose another folder, or delete it"
        ) from error
    if unlike:
        raise InputError(f"{path} holds another run ({'; '.join(unlike)}); choose another folder, or delete it")
    return results | {name: stored.get(name, results[name]) for name in ("environment", "seconds")}


def _comparable(results: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for key, value in results["config"].items() if key not in ASKED_FOR}
    return {"experiment": results["experiment"], "config": settings, "corpus": results["corpus"]}


def _missing(experiment: Experiment, results: Mapping[str, Any], progress: Lines) -> dict[str, list[int]]:
    """The seeds still to be run, by variant."""
    runs = {(variant, seed): _is_there(experiment, results, variant, seed) for variant in experiment.variants
            for seed in experiment.seeds_of(variant)}  # fmt: skip
    progress.planned(len(runs), sum(runs.values()), experiment.steps)
    missing: dict[str, list[int]] = {}
    for (variant, seed), is_there in runs.items():
        if is_there:
            progress.kept(_name(experiment, variant, seed))
        else:
            missing.setdefault(variant, []).append(seed)
    return missing


def _is_there(experiment: Experiment, results: Mapping[str, Any], variant: str, seed: int) -> bool:
    run = results["variants"].get(variant, {"runs": {}})["runs"].get(str(seed))
    return run is not None and not experiment.lacks_something(variant, run)


def _claim(held: OutputFolder, out: Path, missing: Mapping[str, list[int]]) -> None:
    """Refuse now what could not be written after the training."""
    if (out / RESULTS).exists() and held.leads:
        held.adopt(RESULTS)  # its settings say that it is of this experiment
    for variant, seeds in missing.items():
        for seed in seeds:
            folder = folder_of(Path(), variant, seed)
            held.claim(*(str(folder / name) for name in ("model", METRICS, f"{TOGETHER}.json")))


def _teller(experiment: Experiment, results: dict[str, Any], out: Path, progress: Lines, device: str) -> Tell:
    """Passes on what happens, and writes every run that is finished."""
    spent, began = results["seconds"], time.perf_counter()

    def keep(variant: str, seed: int, found: Mapping[str, Any]) -> None:
        runs = results["variants"].setdefault(variant, {"runs": {}})["runs"]
        runs[str(seed)] = merged(runs.get(str(seed), {}), found)
        results["environment"] = environment(device)
        results["seconds"] = spent + time.perf_counter() - began  # of all commands so far, waiting included
        write_json(out / RESULTS, results)

    def tell(event: Event) -> None:
        name = _name(experiment, event.variant, event.seed)
        if isinstance(event, Trained):
            progress.trained(name, event.report)
        elif isinstance(event, Evaluated):
            progress.evaluated(name, event.said)
        elif isinstance(event, Measured):
            keep(event.variant, event.seed, event.found)
            progress.evaluated(name, event.said)
        else:
            keep(event.variant, event.seed, event.run)
            if event.whole:  # only now: until the result is written, the checkpoint is all there is of it
                checkpoints.drop(folder_of(out, event.variant, event.seed) / "checkpoint")
            progress.finished(name, event.said)

    return tell


def merged(run: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """
    >>> merged({"perplexity": {"512": 9.5}}, {"perplexity": {"1024": 9.0}, "final_loss": 2.2})
    {'perplexity': {'512': 9.5, '1024': 9.0}, 'final_loss': 2.2}
    """
    both = {name: merged(run[name], found[name]) for name in found.keys() & run.keys() if isinstance(run[name], dict)}
    return {**run, **found, **both}


def _name(experiment: Experiment, variant: str, seed: int) -> str:
    return f"{variant}, seed {seed}" if experiment.seeds > 1 else variant
