"""One variant: train it with every seed asked for, then ask it for names under every condition."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from contentrope import schemes
from contentrope.checkpoint import save
from contentrope.experiments import suite
from contentrope.experiments.facts.batches import FactBatches
from contentrope.experiments.facts.config import FactsConfig
from contentrope.experiments.facts.inside import look_inside
from contentrope.experiments.facts.rows import CONDITIONS, KINDS, ROW_TO_LOOK_AT, Row, rows
from contentrope.experiments.facts.scoring import Scores, score
from contentrope.experiments.first_weights import initialiser
from contentrope.experiments.suite import (
    Configured,
    Evaluated,
    Finished,
    Tell,
    finite_or_none,
    seeded,
    trained_models,
)
from contentrope.facts import MIXTURE, Drawn, Sampler, World
from contentrope.facts.distractors import require_distractors
from contentrope.model import Transformer
from contentrope.schemes.addressed import competing_with, learned_by_head
from contentrope.training import read_metrics
from contentrope.training.batches import mixed_seed

ORDERS = 4
"""How often the facts of an example are put in another order."""
MANY_TEST_NAMES = 1000
"""Unseen names where there are more distractors than a hundred names have facts."""
LOSSES_KEPT = 100


def run(config: FactsConfig, *where: Any, **how: Any) -> dict[str, Any]:
    """Train and evaluate every variant, :func:`contentrope.experiments.suite.run` says where and how."""
    return suite.run(Facts(config), *where, **how)


@dataclass(frozen=True)
class Facts(Configured):
    """The experiment: :class:`contentrope.experiments.suite.Experiment`."""

    config: FactsConfig

    name = "facts"

    @cached_property
    def world(self) -> World:
        return World(self.config.world)

    def data(self) -> dict[str, Any]:
        counts = self.world.train.counts()
        return {
            "name": self.name,
            "names": counts.names,
            "test_names": len(self.world.test.names),
            "facts": counts.facts,
            "sentences": counts.sentences,
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
        for row in rows():
            self.examples(sampler, row, count=1)
        require_distractors(self.world.train, "any", "mixed", self.config.facts[1] - 1)
        if self.config.scaling:
            for kind in KINDS:
                require_distractors(self._many_names().test, kind, "same relation", max(self.config.scaling))

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
                found = self._evaluate(variant, seed, model, sampler, tell)
            found["losses"] = _thinned(read_metrics(folder / "metrics.jsonl"))
            tell(Finished(variant, seed, finite_or_none(found | facts), _in_short(found["rows"])))

    def examples(self, sampler: Sampler, row: Row, count: int | None = None) -> Drawn:
        """The examples of a row of the table: the same for all variants and seeds."""
        distractors = 0 if row.condition == "single fact" else self.config.distractors
        return sampler.draw(
            count or self.config.examples,
            _generator(self.config.world, rows().index(row)),
            names=row.names,
            kind=row.kind,
            condition=CONDITIONS[row.condition],
            distractors=distractors,
        )

    def _evaluate(self, variant: str, seed: int, model: Transformer, sampler: Sampler, tell: Tell) -> dict[str, Any]:
        began, config = time.perf_counter(), self.config
        backend, model.backend = model.backend, "tiled" if model.config.scheme in schemes.KNOW_MEMORY else "auto"
        found: dict[str, Any] = {"rows": {}}
        for row in rows():
            summary = found["rows"][row.title] = score(model, self.examples(sampler, row)).summary()
            tell(Evaluated(variant, seed, f"hit@5 {summary['hit5']:.3f} {row.title}"))
        if config.exponents and model.config.scheme in schemes.KNOW_MEMORY:
            found["exponents"] = {
                f"{exponent:g}": self._rows_with(exponent, model, sampler) for exponent in config.exponents
            }
        if config.scaling:
            found["scaling"] = self._scaling(variant, seed, model, tell)
        if config.order:
            found["order"] = self._order(model, sampler)
        if by_head := learned_by_head(model.scheme):
            found["learned_by_head"] = by_head
        if seed == 0:
            found |= look_inside(model, sampler, self.examples(sampler, ROW_TO_LOOK_AT, count=1), _generator(0, 1))
        model.backend = backend
        found["evaluation_seconds"] = time.perf_counter() - began
        return found

    def _rows_with(self, exponent: float, model: Transformer, sampler: Sampler) -> dict[str, Any]:
        with competing_with(model.scheme, exponent):
            return {row.title: score(model, self.examples(sampler, row)).summary() for row in rows()}

    def _many_names(self) -> World:
        return World(self.config.world, test_names=MANY_TEST_NAMES)

    def _scaling(self, variant: str, seed: int, model: Transformer, tell: Tell) -> dict[str, Any]:
        """Unseen names, more and more facts of the same relation."""
        sampler = Sampler(self._many_names(), self.config.layout, next(model.parameters()).device)
        found: dict[str, Any] = {}
        for count in self.config.scaling:
            for kind in KINDS:
                generator = _generator(self.config.world, 100 + count)
                drawn = sampler.draw(
                    self.config.examples,
                    generator,
                    names="test",
                    kind=kind,
                    condition="same relation",
                    distractors=count,
                )
                summary = found.setdefault(str(count), {})[kind] = score(model, drawn).summary()
                tell(Evaluated(variant, seed, f"hit@5 {summary['hit5']:.3f} {kind}, {count} distractors"))
        return found

    def _order(self, model: Transformer, sampler: Sampler) -> dict[str, Any]:
        """What becomes of the answers when the same facts stand in another order."""
        drawn = self.examples(sampler, ROW_TO_LOOK_AT, count=self.config.order)
        generator = _generator(self.config.world, 99)
        orders = [drawn, *(sampler.permuted(drawn, generator) for _ in range(ORDERS))]
        first, *others = [score(model, order) for order in orders]
        changed = torch.stack([_answers_changed(drawn, first, other) for other in others]).any(0)
        precise = copy.deepcopy(model).double()  # tells what is rounding
        return {
            "examples": len(drawn.ids),
            "permutations": ORDERS,
            "answers_changed": changed.double().mean().item(),
            "largest_change": _largest_change([first, *others]),
            "largest_change_float64": _largest_change([score(precise, order) for order in orders]),
            "largest_logit": float(first.logits.abs().max()),
        }


def _largest_change(orders: list[Scores]) -> float:
    """Of any logit, between the first order and another."""
    first, *others = (order.logits for order in orders)
    return max(float((other - first).abs().max()) for other in others)


def _answers_changed(drawn: Drawn, first: Scores, other: Scores) -> torch.Tensor:
    """By example: is any of the most likely characters another one?"""
    row = drawn.scored.cpu().nonzero()[:, 0]
    return torch.zeros(len(drawn.ids)).index_add_(0, row, (first.best != other.best).float()) > 0


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed(*numbers, 3))


def _thinned(metrics: list[dict[str, Any]]) -> list[list[float]]:
    """Step and loss, about a hundred of them, the last among them."""
    every = max(1, -(-len(metrics) // LOSSES_KEPT))
    return [[line["step"], line["loss"]] for line in metrics[::-every][::-1]]


def _in_short(found: dict[str, Any]) -> str:
    titles = [Row(condition, "chain2", "test").title for condition in CONDITIONS]
    hits = ", ".join(f"{found[title]['hit5']:.2f} {title.split(',')[0]}" for title in titles)
    return f"hit@5 on unseen names {hits}"
