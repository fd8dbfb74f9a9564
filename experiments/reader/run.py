"""One variant: convert the model, train it for minutes, then ask it, piece by piece, each of which is kept at once."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from contentrope.cli.options import require_no_file
from contentrope.errors import InputError
from contentrope.results import environment, finite_or_none
from contentrope.training import StepReport
from experiments.conversions import Addresses, is_trained, parse_conversion
from experiments.experiment import Experiment, Finished, Measured, Tell, Trained
from experiments.models import folder_of
from experiments.pieces import Piece, left, placed, so_far
from experiments.reader.config import MEASURES, ReaderConfig, reads_units
from experiments.runner import RESULTS

STORE = ".store"
"""In the folder of a run, while it is measured."""


@dataclass(frozen=True)
class Reader(Experiment):
    """The experiment: :class:`experiments.runner.Experiment`."""

    config: ReaderConfig

    name, trains_in_processes = "reader", True

    @property
    def steps(self) -> int:
        return self.config.training.steps

    def seeds_of(self, variant: str) -> range:
        """The untouched model is the same whatever the seed."""
        return range(self.seeds if variant in self.config.main and is_trained(variant) else 1)

    def lacks_something(self, variant: str, run: Mapping[str, Any]) -> bool:
        return bool(left(self.config.pieces(), run))

    @cached_property
    def material(self) -> Any:
        from contentrope.hf.plain import load_tokenizer
        from experiments.open_model.models import model_place
        from experiments.reader.models import Material

        return Material(self.config, load_tokenizer(model_place(self.config.model)))

    def data(self) -> dict[str, Any]:
        from experiments.open_model.weights import origin, weights_folder

        readings = self.material.readings
        found = {"name": "Natural Questions", **{k: v for k, v in readings.description.items() if k != "name"}}
        found |= {"scored": len(self.material.scored), "books_tokens": len(self.material.books)}
        return found | ({"gguf_sha256": origin(weights_folder())} if self.config.model is None else {})

    def check(self) -> None:
        from contentrope.hf.plain import require_transformers

        if self.config.model is not None:
            require_no_file(self.config.model)
        options = [parse_conversion(variant) for variant in self.variants]
        require_transformers(peft=any(isinstance(found, Addresses) and found.train == "lora" for found in options))
        if not getattr(self.material.tokenizer, "chat_template", None):
            raise InputError("questions are asked by a chat template, and this tokenizer has none; take another model")
        asking = self.config.asking
        self.material.asked(max(asking.examples, asking.orders))
        self.material.rows("cpu")

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        for seed in seeds:
            run = so_far(out / RESULTS, variant, seed)
            model, facts = self._trained(variant, seed, out, device, tell)
            tell(Measured(variant, seed, facts | {"environment": _environment(device)}, "trained"))
            with _empty(folder_of(out, variant, seed) / STORE) as folder:
                run = self._ask(model, variant, seed, run, folder, device, tell)
            tell(Finished(variant, seed, {}, "measured", not left(self.config.pieces(MEASURES), run)))

    def _ask(
        self, model: Any, variant: str, seed: int, run: Mapping[str, Any], folder: Path, device: str, tell: Tell
    ) -> Mapping[str, Any]:
        """A run with all its pieces."""
        answerer = self._answerer(model, folder if reads_units(variant) else None, device)
        for piece in left(self.config.pieces(), run):
            value = finite_or_none(self.measured(answerer, piece))
            run = placed(run, piece, value)
            tell(Measured(variant, seed, placed({}, piece, value), f"{' '.join(piece)}: {_in_short(value)}"))
        return run

    def train(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        for seed in seeds if is_trained(variant) else ():
            self._trained(variant, seed, out, device, tell)

    def _trained(self, variant: str, seed: int, out: Path, device: str, tell: Tell) -> tuple[Any, dict[str, Any]]:
        from experiments.reader import models

        def hear(report: StepReport) -> None:
            tell(Trained(variant, seed, report))

        return models.trained(self.material, variant, seed, out, device, hear)

    def _answerer(self, model: Any, folder: Path | None, device: str) -> Any:
        from experiments.reader.measuring import Answerer, as_measured

        model, material = as_measured(model, self.config.training.precision, device), self.material
        return Answerer(model, material.tokenizer, material.segmenter, self.config.asking.new_tokens, folder)

    def measured(self, answerer: Any, piece: Piece) -> Any:
        """One piece of what is measured, as JSON."""
        asking, kind, count = self.config.asking, piece[0], int(piece[1])
        if kind == "orders":
            return answerer.orders(self.material.asked(asking.orders), count)
        return answerer.answers(self.material.asked(asking.examples), count, float(piece[2]))


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    """A folder for the time of the block. One that a killed process has left is removed first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        gc.collect()  # a store that is dropped notes what was used, so that comes before its folder goes
        shutil.rmtree(folder, ignore_errors=True)


def _in_short(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number:.3g}" for name, number in value.items())


def _environment(device: str) -> dict[str, Any]:
    import transformers

    return environment(device) | {"transformers": transformers.__version__}
