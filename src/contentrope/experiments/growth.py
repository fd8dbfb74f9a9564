"""Context growth: train on short windows, then read ever longer ones.

The quick form of the question, on a text every Python installation carries: does a prediction get worse when
the model is shown more context than it was trained with? Units are lines.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope import schemes
from contentrope.config import ModelConfig, differences
from contentrope.corpora import CharVocabulary, fingerprint, standard_library_text
from contentrope.errors import InputError
from contentrope.experiments.evaluation import perplexity
from contentrope.experiments.training import StepReport, TrainConfig, train
from contentrope.experiments.variants import parse_variant
from contentrope.model import Transformer
from contentrope.results import environment, read_json, write_json

TRAINING_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """Settings of the context-growth experiment. The defaults take a few minutes on two CPU cores."""

    schemes: tuple[str, ...] = ("content", "content:competition=1", "rope")
    """What to compare: scheme, or scheme:option=value."""
    dim: int = 128
    """Width of the model."""
    layers: int = 3
    """Layers of the model."""
    heads: int = 4
    """Attention heads of the model."""
    length: int = 128
    """Characters per training window."""
    multiples: tuple[int, ...] = (1, 2, 4, 8)
    """Evaluation windows, in multiples of the training window."""
    steps: int = 400
    """Updates per scheme."""
    batch_size: int = 16
    """Windows per update."""
    learning_rate: float = 1e-3
    """Peak of the learning rate, after a warm-up of a tenth of the steps."""
    characters: int = 1_200_000
    """Length of the text: nine tenths to train on, the rest to evaluate."""
    evaluation_tokens: int = 65_536
    """Characters scored at each length; the same ones at all lengths."""
    seed: int = 0
    """Seed of the weights, the batches and everything else random."""

    def __post_init__(self) -> None:
        for name in ("schemes", "multiples"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name} must name one or more different values, got {values}")
        if min(self.multiples) < 1:
            raise InputError(f"multiples must be at least 1, got {self.multiples}")
        for scheme in self.schemes:
            parse_variant(scheme)
        _ = self.training  # checks the rest
        if self.scored_tokens < self.lengths[-1]:
            raise InputError(
                f"windows of {self.lengths[-1]} characters do not fit: {self.characters} characters leave "
                f"{self.scored_tokens} to score; raise characters and evaluation_tokens, or lower multiples"
            )

    @property
    def training(self) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            length=self.length,
            learning_rate=self.learning_rate,
            warmup=self.steps // 10,
            seed=self.seed,
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.length * multiple for multiple in sorted(self.multiples))

    @property
    def held_out(self) -> int:
        return self.characters - int(self.characters * TRAINING_SHARE)

    @property
    def scored_tokens(self) -> int:
        """Whole windows of the longest kind, so that every length scores the same characters."""
        longest = self.lengths[-1]
        return min(self.evaluation_tokens, self.held_out - 1) // longest * longest

    def model(self, variant: str, vocabulary: CharVocabulary) -> ModelConfig:
        scheme, options = parse_variant(variant)
        return ModelConfig(
            vocab_size=len(vocabulary),
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            scheme=scheme,
            options=options,
            terminators=(vocabulary.id_of("\n"),),
        )


class Progress(Protocol):
    """What a run tells while it goes."""

    def kept(self, scheme: str) -> None:
        """``scheme`` was finished by an earlier run."""

    def trained(self, scheme: str, report: StepReport) -> None:
        """``scheme`` made one more update."""

    def evaluated(self, scheme: str, length: int, value: float) -> None:
        """``scheme`` has this perplexity at this length."""


@dataclass(frozen=True)
class _Corpus:
    vocabulary: CharVocabulary
    training: Int[Tensor, "characters"]
    held_out: Int[Tensor, "characters"]
    description: dict[str, Any]


def run(config: GrowthConfig, out: Path, progress: Progress, device: str = "cpu") -> dict[str, Any]:
    """Train and evaluate every scheme; write ``out/results.json`` after each, and skip those it holds."""
    _require_device(device)
    corpus = _corpus(config)
    results = _begin(config, out / "results.json", corpus.description)
    for scheme in config.schemes:  # a misspelt option stops the run now, not after the first scheme
        schemes.make(config.model(scheme, corpus.vocabulary))
    for scheme in config.schemes:
        if scheme in results["schemes"]:
            progress.kept(scheme)
            continue
        results["schemes"][scheme] = _measure(config, scheme, corpus, out, progress, device)
        results["environment"] = environment(device)
        write_json(out / "results.json", results)
    return results


def _require_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch built without CUDA
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here ({reason}); use cpu") from error


def _corpus(config: GrowthConfig) -> _Corpus:
    text = standard_library_text(config.characters)
    vocabulary = CharVocabulary.from_text(text)
    ids = torch.tensor(vocabulary.encode(text))
    description = {"name": "standard library", "characters": len(text), "sha256": fingerprint(text)}
    return _Corpus(vocabulary, ids[: -config.held_out], ids[-config.held_out :], description)


def _measure(
    config: GrowthConfig, scheme: str, corpus: _Corpus, out: Path, progress: Progress, device: str
) -> dict[str, Any]:
    settings = config.model(scheme, corpus.vocabulary)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(config.seed)
        model = Transformer(settings).to(device)
    last = train(
        model,
        corpus.training,
        config.training,
        checkpoint=out / "checkpoints" / re.sub(r"[^\w.=-]+", "-", scheme),
        on_step=lambda report: progress.trained(scheme, report),
        settings={"model": settings.to_dict(), "corpus": corpus.description},
    )
    began = time.perf_counter()
    by_length = {}
    for length in config.lengths:
        value = perplexity(model, corpus.held_out, length, max_tokens=config.scored_tokens)
        by_length[str(length)] = value
        progress.evaluated(scheme, length, value)
    return {
        "perplexity": by_length,
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "evaluation_seconds": time.perf_counter() - began,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model": settings.to_dict(),
        "environment": environment(device),
    }


def _begin(config: GrowthConfig, path: Path, corpus: dict[str, Any]) -> dict[str, Any]:
    """The results so far: those on disk if they are of the same experiment, else empty ones."""
    fresh: dict[str, Any] = {
        "experiment": "growth",
        "config": asdict(config),
        "corpus": corpus,
        "environment": None,
        "schemes": {},
    }
    if not path.exists():
        return fresh
    stored = read_json(path)
    unlike = differences(_comparable(fresh), _comparable(stored))
    if unlike:
        raise InputError(f"{path} holds another run ({'; '.join(unlike)}); choose another folder, or delete it")
    fresh["config"]["schemes"] = list(dict.fromkeys([*stored["config"]["schemes"], *config.schemes]))
    return {**fresh, "environment": stored["environment"], "schemes": stored["schemes"]}


def _comparable(results: Mapping[str, Any]) -> dict[str, Any]:
    # Which schemes were asked for does not change what each of them gives.
    settings = {key: value for key, value in results["config"].items() if key != "schemes"}
    return {"experiment": results["experiment"], "config": settings, "corpus": results["corpus"]}
