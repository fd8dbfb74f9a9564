"""One variant: train it with every seed asked for, then read longer and longer windows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from contentrope import schemes
from contentrope.corpora import Corpus, load_corpus
from contentrope.evaluation import perplexity, shown, use_of_distant_text
from contentrope.model import Transformer
from contentrope.results import finite_or_none
from contentrope.text_model import save_text_model
from contentrope.training import Windows
from contentrope.training.seeds import seeded
from experiments.experiment import Evaluated, Experiment, Finished, Tell
from experiments.growth.config import RECENT, GrowthConfig
from experiments.initialisation import initialiser
from experiments.models import trained_models


@dataclass(frozen=True)
class Growth(Experiment):
    config: GrowthConfig

    name = "growth"

    @cached_property
    def corpus(self) -> Corpus:
        return corpus_of(self.config)

    def data(self) -> dict[str, Any]:
        return self.corpus.description

    def check(self) -> None:
        self.config.scored_tokens(len(self.corpus.held_out))
        for variant in self.variants:
            schemes.make(self.config.model_of(variant, self.corpus.vocabulary))

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        config, corpus = self.config, self.corpus
        trained = trained_models(
            variant,
            seeds,
            config.model_of(variant, corpus.vocabulary),
            config.training,
            Windows(corpus.training, config.length, device),
            settings={
                "corpus": corpus.description,
                "length": config.length,
                "initialisation": config.initialisation,
            },
            out=out,
            device=device,
            tell=tell,
            initialise=initialiser(config.initialisation),
        )
        for seed, model, folder, facts in trained:
            save_text_model(folder / "model", model, corpus.vocabulary, corpus.description)
            with seeded(seed):  # for schemes that draw at random
                found = _evaluate(config, variant, seed, model, corpus, tell)
            tell(Finished(variant, seed, found | facts, _curve(found["perplexity"])))


def corpus_of(config: GrowthConfig) -> Corpus:
    corpus = load_corpus(config.corpus, characters=config.characters)
    return corpus.search_split() if config.search else corpus


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
        tell(Evaluated(variant, seed, _at(length, value)))
    run: dict[str, Any] = {"perplexity": by_length}
    if config.distant:
        run |= use_of_distant_text(
            model, corpus.held_out, config.distant, elsewhere=corpus.training, near=RECENT, max_tokens=scored
        )
    model.backend = backend
    run["evaluation_seconds"] = time.perf_counter() - began
    return run


def _curve(by_length: dict[str, float | None]) -> str:
    return "perplexity " + ", ".join(_at(int(length), value) for length, value in by_length.items())


def _at(length: int, value: float | None) -> str:
    """
    >>> _at(4096, 2.5), _at(256, None)
    ('2.50 at 4,096', 'inf at 256')
    """
    return f"{shown(value)} at {length:,}"
