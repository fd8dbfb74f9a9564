"""One variant: train it with every seed asked for, then read longer and longer windows."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contentrope.config import ModelConfig
from contentrope.corpora import Corpus, load_corpus
from contentrope.experiments.distant import perplexity_by_position, perplexity_with_changed_past
from contentrope.experiments.evaluation import perplexity
from contentrope.experiments.growth.config import RECENT, GrowthConfig
from contentrope.experiments.saved import save_text_model
from contentrope.model import Transformer
from contentrope.results import environment
from contentrope.training import MetricsLog, Stepper, StepReport, Windows, train


class Trained(NamedTuple):
    variant: str
    seed: int
    report: StepReport


class Evaluated(NamedTuple):
    variant: str
    seed: int
    length: int
    perplexity: float | None


class Finished(NamedTuple):
    variant: str
    seed: int
    run: dict[str, Any]


Tell = Callable[[Trained | Evaluated | Finished], None]


def corpus_of(config: GrowthConfig) -> Corpus:
    corpus = load_corpus(config.corpus, characters=config.characters)
    return corpus.search_split() if config.search else corpus


def folder_of(out: Path, variant: str, seed: int) -> Path:
    return out / "runs" / re.sub(r"[^\w.=-]+", "-", variant) / f"seed-{seed}"


def measure(
    config: GrowthConfig, variant: str, seeds: list[int], corpus: Corpus, out: Path, device: str, tell: Tell
) -> None:
    """Train and evaluate ``variant`` with each seed; ``tell`` hears of every step and of each finished run."""
    windows = Windows(corpus.training, config.length, device)
    for seed, model, stepper in _steppers(config, variant, seeds, corpus, device):
        folder = folder_of(out, variant, seed)
        settings = {
            "model": model.config.to_dict(),
            "corpus": corpus.description,
            "length": config.length,
        }
        last = train(
            stepper,
            windows,
            checkpoint=folder / "checkpoint",
            on_step=lambda report, seed=seed: tell(Trained(variant, seed, report)),  # type: ignore[misc]
            settings=settings,
            metrics=MetricsLog(folder),
        )
        save_text_model(folder / "model", model, corpus.vocabulary, corpus.description)
        with seeded(seed):  # for schemes that draw at random
            run = _evaluate(config, variant, seed, model, corpus, tell)
        run |= {
            "final_loss": last.loss,
            "training_seconds": last.seconds,
            "steps_per_second": last.steps_per_second,
            "acceleration": stepper.acceleration,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "model": settings["model"],
            "environment": environment(device),
        }
        tell(Finished(variant, seed, run))


def fresh_model(config: ModelConfig, seed: int, device: str) -> Transformer:
    """A model with the first weights of ``seed``, which are the same on every device."""
    with seeded(seed):
        return Transformer(config).to(device)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers that depend on ``seed`` alone, for the time of the block."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _steppers(
    config: GrowthConfig, variant: str, seeds: list[int], corpus: Corpus, device: str
) -> Iterator[tuple[int, Transformer, Stepper]]:
    """One model and stepper for all seeds: what was compiled for the first serves the others."""
    settings = config.model_of(variant, corpus.vocabulary)
    model = fresh_model(settings, seeds[0], device)
    stepper = Stepper(model, replace(config.training, seed=seeds[0]))
    yield seeds[0], model, stepper
    for seed in seeds[1:]:
        stepper.restart(seed, fresh_model(settings, seed, device).state_dict())
        yield seed, model, stepper


def _evaluate(
    config: GrowthConfig, variant: str, seed: int, model: Transformer, corpus: Corpus, tell: Tell
) -> dict[str, Any]:
    began = time.perf_counter()
    backend, model.backend = model.backend, "tiled"  # the one that need not be compiled for every length
    scored = config.scored_tokens(len(corpus.held_out))
    by_length = {}
    for length in (*config.lengths, *(config.once if seed == 0 else ())):
        limit = scored if length in config.lengths else None
        value = finite_or_none(perplexity(model, corpus.held_out, length, max_tokens=limit))
        by_length[str(length)] = value
        tell(Evaluated(variant, seed, length, value))
    run: dict[str, Any] = {"perplexity": by_length}
    if config.distant:
        run |= use_of_distant_text(
            model, corpus.held_out, config.distant, elsewhere=corpus.training, near=RECENT, max_tokens=scored
        )
    model.backend = backend
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # other variants may be computed beside this one
    run["evaluation_seconds"] = time.perf_counter() - began
    return run


def use_of_distant_text(
    model: Transformer, data: Tensor, length: int, *, elsewhere: Tensor, near: int, max_tokens: int | None = None
) -> dict[str, Any]:
    """Both measures of ``experiments/distant.py``, as JSON."""
    by_position = perplexity_by_position(model, data, length, max_tokens=max_tokens)
    changed_past = perplexity_with_changed_past(
        model,
        data,
        length,
        near=near,
        terminators=model.config.terminators,
        elsewhere=elsewhere,
        max_tokens=max_tokens,
    )
    return finite_or_none({"by_position": by_position, "distant": changed_past})


def finite_or_none(value: Any) -> Any:
    """JSON has no infinity: None in its place, in lists and dictionaries too."""
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
