"""One variant: convert the original of every seed asked for, train it for a while, read longer and longer windows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from contentrope.anchors import dealt_out
from contentrope.experiments import suite
from contentrope.experiments.evaluation import perplexity, shown
from contentrope.experiments.retrofit.config import RetrofitConfig
from contentrope.experiments.retrofit.conversions import UNTOUCHED, parse_conversion
from contentrope.experiments.retrofit.texts import Encoded, Text, encode, read_text
from contentrope.experiments.suite import (
    Configured,
    Evaluated,
    Finished,
    Tell,
    Trained,
    finite_or_none,
    folder_of,
    seeded,
)
from contentrope.results import environment, read_json
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, Windows, train

MOST_LOGITS = 2**26
"""At once, but for a single window that has more: a large vocabulary would fill the memory."""


def run(config: RetrofitConfig, *where: Any, **how: Any) -> dict[str, Any]:
    """Convert and evaluate by every variant, :func:`contentrope.experiments.suite.run` says where and how."""
    return suite.run(Retrofit(config), *where, **how)


class Converted(NamedTuple):
    seed: int
    reader: Any
    facts: dict[str, Any]


@dataclass(frozen=True)
class Retrofit(Configured):
    """The experiment: :class:`contentrope.experiments.suite.Experiment`."""

    config: RetrofitConfig

    name = "retrofit"

    @property
    def steps(self) -> int:
        """In the mean over all runs: the original's own training is counted with those of its variants."""
        conversions = [name for name in self.variants if parse_conversion(name).trains]
        originals = self.config.pretraining.steps if self.config.model is None else 0
        return (originals + len(conversions) * self.config.training.steps) // len(self.variants)

    @cached_property
    def text(self) -> Text:
        return read_text(self.config.text, self.config.characters)

    @cached_property
    def tokenizer(self) -> Any:
        from contentrope.hf.characters import character_tokenizer
        from contentrope.hf.plain import load_tokenizer

        if self.config.model is None:
            return character_tokenizer(self.text.training)
        return load_tokenizer(self.config.model)

    @cached_property
    def ids(self) -> Encoded:
        return encode(self.text, self.tokenizer)

    def data(self) -> dict[str, Any]:
        tokens = {"training_tokens": len(self.ids.training), "held_out_tokens": len(self.ids.held_out)}
        return self.text.description | {"symbols": len(self.tokenizer)} | tokens

    def check(self) -> None:
        from contentrope.experiments.retrofit.converting import check_units
        from contentrope.hf.plain import config_of, key_heads, require_transformers

        options = [parse_conversion(variant).addresses for variant in self.variants]
        require_transformers(peft=any(found is not None and found.train == "lora" for found in options))
        check_units(self.config.units, self.config.marker, self.tokenizer)
        heads = self.config.size.heads if self.config.model is None else key_heads(config_of(self.config.model))
        for found in options:
            if found is not None:
                dealt_out(found.anchors, heads)
        self.config.scored_tokens(len(self.ids.held_out))

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        windows = Windows(self.ids.training, self.config.length, device)
        if self.config.model is None:
            from contentrope.experiments.retrofit.original import Pretraining, train_originals

            plan = Pretraining(self.config, self.tokenizer, windows, self.text.description)
            train_originals(plan, seeds, out, device, lambda seed, report: tell(Trained(UNTOUCHED, seed, report)))
        for seed, reader, facts in self._converted(variant, seeds, windows, out, device, tell):
            found = self._evaluate(variant, seed, reader, tell)
            tell(Finished(variant, seed, found | facts, in_short(found["perplexity"])))

    def original_of(self, out: Path, seed: int) -> str:
        from contentrope.experiments.retrofit.original import original_folder

        return self.config.model or str(original_folder(out, seed) / "model")

    def _converted(
        self, variant: str, seeds: list[int], windows: Batches, out: Path, device: str, tell: Tell
    ) -> Iterator[Converted]:
        """A trained conversion per seed, one after the other, in one model: what was compiled serves all seeds."""
        first: Any = None
        stepper: Stepper | None = None
        for seed in seeds:
            reader = self._fresh(variant, seed, out, device)
            if first is None:
                first = reader
            else:
                first.load_state_dict(reader.state_dict())
            if parse_conversion(variant).trains:
                if stepper is None:
                    stepper = Stepper(first, replace(self.config.training, seed=seed))
                else:
                    stepper.restart(seed, reader.state_dict())
                last = self._train(variant, seed, stepper, windows, out, tell)
                facts = _facts(last, stepper, device)
            else:
                facts = self._untrained_facts(variant, first, out, seed, device)
            if variant != UNTOUCHED:
                self._save(variant, seed, first, out)
            yield Converted(seed, first, facts)

    def _fresh(self, variant: str, seed: int, out: Path, device: str) -> Any:
        from contentrope.experiments.retrofit.converting import converted

        with seeded(seed):  # LoRA begins at random
            original = self.original_of(out, seed)
            return converted(self.config, variant, original, self.tokenizer, self.ids.training, device)

    def _train(self, variant: str, seed: int, stepper: Stepper, windows: Batches, out: Path, tell: Tell) -> StepReport:
        from contentrope.experiments.retrofit.reader import Gated

        config, folder = self.config, folder_of(out, variant, seed)
        fall = max(1, round(config.gate_share * config.training.steps))
        batches = Gated(windows, fall) if parse_conversion(variant).gated else windows
        return train(
            stepper,
            batches,
            checkpoint=folder / "checkpoint",
            on_step=lambda report: tell(Trained(variant, seed, report)),
            settings={
                "corpus": self.text.description,
                "length": config.length,
                "fall": fall,
                "units": config.units,
                "marker": config.marker,
            },
            metrics=MetricsLog(folder),
        )

    def _save(self, variant: str, seed: int, reader: Any, out: Path) -> None:
        from contentrope.hf.plain import save_plain
        from contentrope.hf.writing import save_pretrained

        folder = folder_of(out, variant, seed) / "model"
        if parse_conversion(variant).addresses is None:
            save_plain(reader.model, self.tokenizer, folder)
        else:
            save_pretrained(reader.model, folder, self.tokenizer)

    def _untrained_facts(self, variant: str, reader: Any, out: Path, seed: int, device: str) -> dict[str, Any]:
        from contentrope.experiments.retrofit.original import FACTS

        facts = _about(reader, device)
        if variant == UNTOUCHED and self.config.model is None:
            found = read_json(Path(self.original_of(out, seed)) / FACTS)
            facts |= {name: value for name, value in found.items() if name != "settings"}
        return facts

    def _evaluate(self, variant: str, seed: int, reader: Any, tell: Tell) -> dict[str, Any]:
        began, held_out = time.perf_counter(), self.ids.held_out
        scored, at_once = self.config.scored_tokens(len(held_out)), min(16384, MOST_LOGITS // len(self.tokenizer))
        by_length = {}
        for length in self.config.lengths:
            value = perplexity(reader, held_out, length, max_tokens=scored, batch_tokens=at_once)
            by_length[str(length)] = finite_or_none(value)
            tell(Evaluated(variant, seed, f"{shown(by_length[str(length)])} at {length:,}"))
        return {"perplexity": by_length, "evaluation_seconds": time.perf_counter() - began}


def _facts(last: StepReport, stepper: Stepper, device: str) -> dict[str, Any]:
    trained = sum(p.numel() for p in stepper.model.parameters() if p.requires_grad)
    return _about(stepper.model, device) | {
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "steps_per_second": last.steps_per_second,
        "acceleration": stepper.acceleration,
        "trained_parameters": trained,
    }


def _about(reader: torch.nn.Module, device: str) -> dict[str, Any]:
    import transformers

    parameters = sum(parameter.numel() for parameter in reader.parameters())
    return {"parameters": parameters, "environment": environment(device) | {"transformers": transformers.__version__}}


def in_short(by_length: dict[str, float | None]) -> str:
    """
    >>> in_short({"256": 4.2, "512": None})
    'perplexity 4.20 at 256, inf at 512'
    """
    return "perplexity " + ", ".join(f"{shown(value)} at {int(length):,}" for length, value in by_length.items())
