"""One variant: convert the original of every seed asked for, train it for a while, read longer and longer windows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from contentrope.cli.options import require_no_file
from contentrope.corpora import Text, read_text
from contentrope.hf.characters import Encoded, character_tokenizer, encode
from contentrope.results import environment, read_json
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, Windows, train
from contentrope.training.seeds import seeded
from experiments.conversions import UNTOUCHED, Addresses, is_trained, parse_conversion
from experiments.experiment import Evaluated, Experiment, Finished, Tell, Trained
from experiments.models import folder_of, in_short, perplexities, size_of, stepper_for, training_facts
from experiments.retrofit.config import RetrofitConfig

MOST_LOGITS = 2**26
"""At once, but for a single window that has more: a large vocabulary would fill the memory."""


@dataclass(frozen=True)
class Retrofit(Experiment):
    """The experiment: :class:`experiments.runner.Experiment`."""

    config: RetrofitConfig

    name = "retrofit"

    @property
    def steps(self) -> int:
        """In the mean over all runs: the original's own training is counted with those of its variants."""
        conversions = [name for name in self.variants if is_trained(name)]
        originals = self.config.pretraining.steps if self.config.model is None else 0
        return (originals + len(conversions) * self.config.training.steps) // len(self.variants)

    @cached_property
    def text(self) -> Text:
        return read_text(self.config.text, self.config.characters)

    @cached_property
    def tokenizer(self) -> Any:
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
        from contentrope.hf.plain import require_transformers

        if self.config.model is not None:
            require_no_file(self.config.model)
        options = map(parse_conversion, self.variants)
        addresses = [found for found in options if isinstance(found, Addresses)]
        require_transformers(peft=any(found.train == "lora" for found in addresses))
        from contentrope.hf.finetune import units_named
        from contentrope.hf.units import rule_of

        rule_of(units_named(self.config.units), self.tokenizer, self.config.marker)
        self.config.scored_tokens(len(self.ids.held_out))

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        from experiments.retrofit import models

        windows = Windows(self.ids.training, self.config.length, device)
        plan = models.Pretraining(self.config, self.tokenizer, windows, self.text.description, out)
        if self.config.model is None:
            models.train_originals(plan, seeds, device, lambda seed, report: tell(Trained(UNTOUCHED, seed, report)))
        stepper: Stepper | None = None
        for seed in seeds:
            original, ids = self.config.model or str(plan.folder(seed) / "model"), self.ids.training
            with seeded(seed):  # LoRA begins at random
                fresh = models.converted(self.config, variant, original, self.tokenizer, ids, device)
            if is_trained(variant):
                stepper = stepper_for(seed, fresh, self.config.training, stepper)
            model = fresh if stepper is None else stepper.model
            facts = _about(model, device)
            if stepper is not None:
                facts |= self._train(variant, seed, stepper, windows, out, tell)
            elif variant == UNTOUCHED and self.config.model is None:
                stored = read_json(Path(original) / models.FACTS)
                facts |= {name: value for name, value in stored.items() if name != "settings"}
            if variant != UNTOUCHED and getattr(parse_conversion(variant), "address", "") != "random":
                self._save(variant, model, folder_of(out, variant, seed) / "model")
            found = self._evaluate(variant, seed, model, tell)
            tell(Finished(variant, seed, found | facts, in_short(found["perplexity"])))

    def _train(
        self, variant: str, seed: int, stepper: Stepper, windows: Batches, out: Path, tell: Tell
    ) -> dict[str, Any]:
        from contentrope.hf.finetune import Gated

        config, folder = self.config, folder_of(out, variant, seed)
        gated = getattr(parse_conversion(variant), "positions", "local") == "gated"
        fall = max(1, round(config.gate_share * config.training.steps))
        settings = {"corpus": self.text.description, "length": config.length, "fall": fall}
        last: StepReport = train(
            stepper,
            Gated(windows, fall) if gated else windows,
            checkpoint=folder / "checkpoint",
            on_step=lambda report: tell(Trained(variant, seed, report)),
            settings={**settings, "units": config.units, "marker": config.marker},
            metrics=MetricsLog(folder),
        )
        trained = sum(p.numel() for p in stepper.model.parameters() if p.requires_grad)
        return {**training_facts(last, stepper), "trained_parameters": trained}

    def _save(self, variant: str, model: Any, folder: Path) -> None:
        from contentrope.hf.saving import save_pretrained
        from experiments.converted import save_plain

        if isinstance(parse_conversion(variant), Addresses):
            save_pretrained(model.model, folder, self.tokenizer)
        else:
            save_plain(model.model, self.tokenizer, folder)

    def _evaluate(self, variant: str, seed: int, model: Any, tell: Tell) -> dict[str, Any]:
        began, held_out = time.perf_counter(), self.ids.held_out
        scored, at_once = self.config.scored_tokens(len(held_out)), min(16384, MOST_LOGITS // len(self.tokenizer))
        most: dict[int, int | None] = dict.fromkeys(self.config.lengths, scored)
        found = perplexities(
            model, held_out, most, lambda said: tell(Evaluated(variant, seed, said)), batch_tokens=at_once
        )
        return {"perplexity": found, "evaluation_seconds": time.perf_counter() - began}


def _about(model: torch.nn.Module, device: str) -> dict[str, Any]:
    import transformers

    versions = environment(device) | {"transformers": transformers.__version__}
    return {"parameters": size_of(model), "environment": versions}
