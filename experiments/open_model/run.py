"""One variant: convert the model, train it for minutes, then measure piece by piece, each of which is kept at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from contentrope.cli.options import require_no_file
from contentrope.errors import InputError
from contentrope.results import environment, finite_or_none
from contentrope.training import StepReport
from contentrope.training.config import computing_in
from experiments.conversions import Addresses, is_trained, parse_conversion
from experiments.experiment import Experiment, Finished, Measured, Tell, Trained
from experiments.open_model.config import MEASURES, OpenModelConfig
from experiments.pieces import Piece, in_short, left, placed, so_far
from experiments.runner import RESULTS


@dataclass(frozen=True)
class OpenModel(Experiment):
    """The experiment: :class:`experiments.runner.Experiment`."""

    config: OpenModelConfig

    name, trains_in_processes = "open_model", True

    @property
    def steps(self) -> int:
        return self.config.training.steps

    def seeds_of(self, variant: str) -> range:
        """The untouched model is the same whatever the seed."""
        return range(self.seeds if variant in self.config.main and is_trained(variant) else 1)

    def lacks_something(self, variant: str, run: Mapping[str, Any]) -> bool:
        return bool(left(self.config.pieces(variant), run))

    @cached_property
    def tokenizer(self) -> Any:
        from contentrope.hf.plain import load_tokenizer
        from experiments.open_model.models import model_place

        return load_tokenizer(model_place(self.config.model))

    @cached_property
    def books(self) -> Any:
        from experiments.open_model.models import read_books

        return read_books(self.config, self.tokenizer)

    def data(self) -> dict[str, Any]:
        from experiments.open_model.weights import origin, weights_folder

        held_out = {name: len(ids) for name, ids in self.books.held_out.items()}
        found: dict[str, Any] = {"name": "books", "training_tokens": len(self.books.training), "held_out": held_out}
        return found | ({"gguf_sha256": origin(weights_folder())} if self.config.model is None else {})

    def check(self) -> None:
        from contentrope.hf.plain import require_transformers

        if self.config.model is not None:
            require_no_file(self.config.model)
        options = [parse_conversion(variant) for variant in self.variants]
        addresses = [found for found in options if isinstance(found, Addresses)]
        require_transformers(peft=any(found.train == "lora" for found in addresses))
        from contentrope.evaluation.tasks import tasks_named
        from contentrope.hf.finetune import units_named
        from contentrope.hf.units import rule_of
        from experiments.open_model.measuring import windows

        asking = self.config.asking
        tasks_named([*asking.tasks, *asking.few_tasks, *asking.last_tasks])
        for named in {self.config.units, *(found.units for found in addresses if found.units)}:
            rule_of(units_named(named), self.tokenizer, None)
        windows(self.books, self.config.reading, min(self.config.reading.lengths))
        if any(getattr(found, "positions", "local") == "gated" for found in options):
            raise InputError("positions=gated is measured by retrofit; leave it out")

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        for seed in seeds:
            run = so_far(out / RESULTS, variant, seed)
            model, facts = self._trained(variant, seed, out, device, tell)
            tell(Measured(variant, seed, facts | {"environment": _environment(device)}, "trained"))
            for piece in left(self.config.pieces(variant), run):
                with computing_in(self.config.training.precision, torch.device(device)):
                    value = finite_or_none(self.measured(model, piece))
                run = placed(run, piece, value)
                tell(Measured(variant, seed, placed({}, piece, value), f"{' '.join(piece)}: {in_short(value)}"))
            whole = not left(self.config.pieces(variant, MEASURES), run)
            tell(Finished(variant, seed, {}, _said(run), whole))

    def train(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        for seed in seeds if is_trained(variant) else ():
            self._trained(variant, seed, out, device, tell)

    def _trained(self, variant: str, seed: int, out: Path, device: str, tell: Tell) -> tuple[Any, dict[str, Any]]:
        from experiments.open_model import models

        def hear(report: StepReport) -> None:
            tell(Trained(variant, seed, report))

        return models.trained(self.config, variant, seed, self.tokenizer, self.books, out, device, hear)

    def measured(self, model: Any, piece: Piece) -> Any:
        """One piece of what is measured, as JSON but for numbers that are not finite."""
        from experiments.open_model import measuring

        kind, *rest = piece
        reading, asking = self.config.reading, self.config.asking
        if kind == "perplexity":
            return measuring.perplexity_at(model, self.books, reading, int(rest[0]))
        if kind == "by_position":
            return measuring.by_position(model, self.books, reading)
        if kind == "distant":
            return measuring.use_of_the_past(model, self.tokenizer, self.books, reading)
        if kind == "short":
            return measuring.single_passages(model, self.tokenizer, asking.short_examples)
        task, size = rest[0], int(rest[1])
        return measuring.found_in(model, self.tokenizer, task, size, asking.count(task, size))


def _said(run: Mapping[str, Any]) -> str:
    from experiments.models import in_short as perplexity_in_short

    return perplexity_in_short(run["perplexity"]) if run.get("perplexity") else "measured"


def _environment(device: str) -> dict[str, Any]:
    import transformers

    return environment(device) | {"transformers": transformers.__version__}
