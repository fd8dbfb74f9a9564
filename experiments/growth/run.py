"""One variant: train it with every seed asked for, then read longer and longer windows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from contentrope import schemes
from contentrope.corpora import Corpus, load_corpus
from contentrope.evaluation import use_of_distant_text
from contentrope.model import Transformer
from contentrope.text_model import save_text_model
from contentrope.training import Windows
from contentrope.training.seeds import seeded
from experiments.experiment import Evaluated, Experiment, Finished, Tell
from experiments.growth.config import RECENT, GrowthConfig
from experiments.initialisation import initialiser
from experiments.models import in_short, perplexities, trained_models


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
            tell(Finished(variant, seed, found | facts, in_short(found["perplexity"])))


def corpus_of(config: GrowthConfig) -> Corpus:
    corpus = load_corpus(config.corpus, characters=config.characters)
    return corpus.search_split() if config.search else corpus


def _evaluate(
    config: GrowthConfig, variant: str, seed: int, model: Transformer, corpus: Corpus, tell: Tell
) -> dict[str, Any]:
    began = time.perf_counter()
    backend, model.backend = model.backend, "tiled"  # the one that need not be compiled for every length
    scored = config.scored_tokens(len(corpus.held_out))
    once = config.once if seed == 0 else ()
    most = {length: scored if length in config.lengths else None for length in (*config.lengths, *once)}
    found = perplexities(model, corpus.held_out, most, lambda said: tell(Evaluated(variant, seed, said)))
    run: dict[str, Any] = {"perplexity": found}
    if config.distant:
        run |= use_of_distant_text(
            model, corpus.held_out, config.distant, elsewhere=corpus.training, near=RECENT, max_tokens=scored
        )
    model.backend = backend
    run["evaluation_seconds"] = time.perf_counter() - began
    return run
