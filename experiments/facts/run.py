"""One variant: train it with every seed asked for, then ask it for names under every condition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from contentrope import schemes
from contentrope.checkpoint import save
from contentrope.model import Transformer
from contentrope.results import finite_or_none
from contentrope.training import read_metrics
from contentrope.training.batches import mixed_seed
from contentrope.training.seeds import seeded
from experiments.experiment import Evaluated, Experiment, Finished, Tell
from experiments.facts import CONDITIONS, KINDS, ROWS
from experiments.facts.batches import FactBatches
from experiments.facts.config import FactsConfig
from experiments.facts.exponents import competing_with, learned_by_head
from experiments.facts.generator.sampler import MIXTURE, Drawn, Sampler, require_distractors
from experiments.facts.generator.world import World
from experiments.facts.scoring import address_map, attention_by_unit, order_changes, score
from experiments.initialisation import initialiser
from experiments.models import trained_models

SHOWN = "same relation, chain2, test"
"""The row whose first example is looked into, and whose facts are put in other orders."""
MANY_TEST_NAMES = 1000
"""Unseen names where there are more distractors than a hundred names have facts."""
LOSSES_KEPT = 100


@dataclass(frozen=True)
class Facts(Experiment):
    """The experiment: :class:`experiments.runner.Experiment`."""

    config: FactsConfig

    name = "facts"

    @cached_property
    def world(self) -> World:
        return World(self.config.world)

    @cached_property
    def larger_world(self) -> World:
        return World(self.config.world, test_names=MANY_TEST_NAMES)

    def data(self) -> dict[str, Any]:
        counts = self.world.train.counts()
        return {
            "name": self.name,
            "names": counts["names"],
            "test_names": len(self.world.test.names),
            "facts": counts["facts"],
            "sentences": counts["sentences"],
            "seed": self.config.world,
            "layout": self.config.layout,
            **({"mixed": MIXTURE} if self.config.facts[1] > 1 else {}),
        }

    def sampler(self, device: str = "cpu") -> Sampler:
        return Sampler(self.world, self.config.layout, device)

    def check(self) -> None:
        sampler = self.sampler()
        for variant in self.variants:
            schemes.make(self.config.model_of(variant, sampler))
        for row in ROWS:
            self.examples(sampler, row, count=1)
        require_distractors(self.world.train, "any", "mixed", self.config.facts[1] - 1)
        for kind in KINDS if self.config.scaling else ():
            require_distractors(self.larger_world.test, kind, "same relation", max(self.config.scaling))

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        config, sampler = self.config, self.sampler(device)
        steps = config.training.steps
        answers_from = None if config.answers_after == 1.0 else round(config.answers_after * steps)
        trained = trained_models(
            variant,
            seeds,
            config.model_of(variant, sampler),
            config.training,
            FactBatches(sampler, config.facts, round(config.ramp * steps), answers_from),
            settings={
                "data": self.data(),
                "facts": list(config.facts),
                "ramp": config.ramp,
                "answers_after": config.answers_after,
                "initialisation": config.initialisation,
            },
            out=out,
            device=device,
            tell=tell,
            together=device.startswith("cuda"),  # kernels this small leave most of a GPU idle
            initialise=initialiser(config.initialisation),
        )
        for seed, model, folder, facts in trained:
            save(model, folder / "model")
            with seeded(seed):  # for schemes that draw at random
                found = self.evaluate(variant, seed, model, sampler, tell)
            found["losses"] = _thinned(read_metrics(folder / "metrics.jsonl"))
            hits = {name: found["rows"][f"{name}, chain2, test"]["hit5"] for name in CONDITIONS}
            said = "hit@5 on unseen names " + ", ".join(f"{hit:.2f} {name}" for name, hit in hits.items())
            tell(Finished(variant, seed, finite_or_none(found | facts), said))

    def examples(self, sampler: Sampler, row: str, count: int | None = None) -> Drawn:
        """The examples of a row of the table: the same for all variants and seeds."""
        condition, kind, names = ROWS[row]
        settings: dict[str, Any] = {"condition": condition.removesuffix(" fact"), "kind": kind, "names": names}
        settings["distractors"] = 0 if condition == "single fact" else self.config.distractors
        generator = _generator(self.config.world, list(ROWS).index(row))
        return sampler.draw(count or self.config.examples, generator, **settings)

    def evaluate(self, variant: str, seed: int, model: Transformer, sampler: Sampler, tell: Tell) -> dict[str, Any]:
        """All that is measured on a trained model."""
        began, config = time.perf_counter(), self.config
        has_addresses = model.scheme.knows_memory_units
        backend, model.backend = model.backend, "tiled" if has_addresses else "auto"
        found: dict[str, Any] = {"rows": {}}
        for row, summary in self._scored_rows(model, sampler):
            found["rows"][row] = summary
            tell(Evaluated(variant, seed, f"hit@5 {summary['hit5']:.3f} {row}"))
        if config.exponents and has_addresses:
            found["exponents"] = {}
            for exponent in config.exponents:
                with competing_with(model.scheme, exponent):
                    found["exponents"][f"{exponent:g}"] = dict(self._scored_rows(model, sampler))
        if config.scaling:
            found["scaling"] = self._scaling(variant, seed, model, tell)
        if config.order:
            drawn = self.examples(sampler, SHOWN, count=config.order)
            found["order"] = order_changes(model, sampler, drawn, _generator(config.world, 99))
        if by_head := learned_by_head(model.scheme):
            found["learned_by_head"] = by_head
        if seed == 0:
            found["inside"] = attention_by_unit(model, sampler, self.examples(sampler, SHOWN, count=1))
            if model.config.scheme == "content":
                found["addresses"] = address_map(model, sampler, _generator(0, 1))
        model.backend = backend
        found["evaluation_seconds"] = time.perf_counter() - began
        return found

    def _scored_rows(self, model: Transformer, sampler: Sampler) -> Iterator[tuple[str, dict[str, Any]]]:
        for row in ROWS:
            yield row, score(model, self.examples(sampler, row)).summary()

    def _scaling(self, variant: str, seed: int, model: Transformer, tell: Tell) -> dict[str, Any]:
        """Unseen names, more and more facts of the same relation."""
        sampler = Sampler(self.larger_world, self.config.layout, next(model.parameters()).device)
        found: dict[str, Any] = {}
        asked: dict[str, Any] = {"names": "test", "condition": "same relation"}
        for count in self.config.scaling:
            for kind in KINDS:
                generator = _generator(self.config.world, 100 + count)
                drawn = sampler.draw(self.config.examples, generator, kind=kind, distractors=count, **asked)
                summary = found.setdefault(str(count), {})[kind] = score(model, drawn).summary()
                tell(Evaluated(variant, seed, f"hit@5 {summary['hit5']:.3f} {kind}, {count} distractors"))
        return found


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed(*numbers, 3))


def _thinned(metrics: list[dict[str, Any]]) -> list[list[Any]]:
    """Step and loss, about a hundred of them, the last among them."""
    every = max(1, -(-len(metrics) // LOSSES_KEPT))
    return [[line["step"], line["loss"]] for line in metrics[::-every][::-1]]
