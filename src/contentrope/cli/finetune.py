"""``contentrope finetune``: content addresses for a Hugging Face model, trained on texts of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from torch import nn
from tyro.conf import arg

from contentrope.attention.api import check_window
from contentrope.cli.options import (
    ALL,
    Device,
    Marker,
    chosen_device,
    is_first_process,
    one,
    require_folder,
    require_no_file,
    require_positive,
    require_seed,
    several,
)
from contentrope.cli.training import TrainOptions, fit, outcome, run_once, whole_model
from contentrope.corpora import Text, read_text
from contentrope.errors import InputError
from contentrope.evaluation import perplexity, shown
from contentrope.hf.characters import Encoded, encode
from contentrope.results import finite_or_none
from contentrope.schemes.base import LARGEST
from contentrope.training import TrainConfig, Windows, local_device, stepper_for
from contentrope.training.seeds import seeded

LONGER = 4
"""Held-out text is also read in windows so many times longer than those of training."""
MOST_SCORED = 131_072
"""Held-out tokens, so that a large model is not read for longer than it is trained."""


@dataclass(frozen=True)
class Finetune:
    """Give a Hugging Face model content addresses and train it on texts, so that it reads beyond its training length.

    - DIR/model: the converted model (with --lora: its adapter), tokenizer and addresses, for `contentrope generate`
    - DIR/finetune.json: all settings, and the perplexity of held-out text before and after
    - DIR/metrics.jsonl: the course of the training
    - DIR/checkpoint, until it is done: the same command again continues where it was stopped

    Example: contentrope finetune --model ./SmolLM2-135M --text my-texts/ --units line --lora 16 --out runs/smol

    Several GPUs: accelerate launch --multi_gpu -m contentrope finetune --model DIR --text my-texts/ --out runs/smol
    """

    model: Annotated[str, arg(metavar="MODEL")]
    """Folder with a causal language model and its tokenizer, or its name on the hub."""
    text: Annotated[tuple[str, ...], several(str, "TEXT")]
    """Files or folders; also shakespeare, or stdlib, the sources of Python's standard library."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Folder for everything that is written."""
    units: Annotated[str, arg(metavar="UNITS")] = "line"
    """What has an address: line, sentence, paragraph, record, document, or a number of tokens."""
    marker: Marker = None
    """What ends a record or document."""
    longest_unit: int = 256
    """Tokens; a unit that gets longer ends there."""
    length: int = 512
    """Tokens per training window."""
    characters: Annotated[int | None, one(int, "INT"), ALL] = None
    """Only the first characters of the text; nine tenths of them are trained on, the rest is held out."""
    positions: Literal["gated", "local"] = "local"
    """local: counted inside each unit at once; gated: from global to local in the first quarter of the training."""
    window: int = 0
    """Units that began at most so many tokens ago are read as by the original model; 0: only the unit itself is."""
    competition: float = 1.0
    """Exponent by which the number of earlier units counts against them; 0 as in the paper."""
    lora: int = 0
    """Rank of LoRA; 0 trains all weights."""
    training: TrainOptions = field(
        default_factory=lambda: TrainOptions(
            steps=500, batch_size=16, learning_rate=1e-4, warmup=50, weight_decay=0.01, acceleration="none"
        )
    )
    save_every: int = 100
    """Updates between two checkpoints."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        from contentrope.hf.plain import config_of, load_tokenizer, require_embedded, require_transformers

        device, config = chosen_device(self.device), self.training.checked()
        require_seed(config.seed)
        require_folder(self.out)
        self._check()
        require_transformers(peft=bool(self.lora))
        original = config_of(self.model)
        text, tokenizer = read_text(self.text, self.characters), load_tokenizer(self.model)
        ids = encode(text, tokenizer)
        for part in ids:
            require_embedded(part, original, self.model)
        settings = self._settings(config, text, ids)

        def work(console: Console) -> dict[str, Any]:
            return self._train(config, tokenizer, ids, settings, str(local_device(device)), console)

        inputs, advice = [self.model, *self.text], f"To write with it: contentrope generate --model {self.out}"
        run_once("finetune", self.out, settings, inputs, work, _summary, advice)

    def _check(self) -> None:
        require_positive(length=self.length, longest_unit=self.longest_unit)
        require_no_file(self.model)
        if abs(self.competition) > LARGEST:
            raise InputError(f"competition is at most {LARGEST:g}, got {self.competition}")
        check_window(self.window)
        if self.window and self.positions != "local":
            raise InputError(f"positions {self.positions!r}: with window {self.window} they are the model's own")
        if self.window >= self.length:
            raise InputError(
                f"window {self.window} must be smaller than length {self.length}: else no address is read in training"
            )
        if self.lora < 0:
            raise InputError(f"lora must be 0, for all weights, or a rank of at least 1; got {self.lora}")

    def _settings(self, config: TrainConfig, text: Text, ids: Encoded) -> dict[str, Any]:
        """What decides the numbers, as JSON."""
        if min(len(ids.training), len(ids.held_out)) <= self.length:
            raise InputError(
                f"the text has {len(ids.training)} tokens to train on and {len(ids.held_out)} held out, too few for "
                f"windows of length {self.length}; take a longer text, or a shorter length"
            )
        addresses = {
            "positions": self.positions,
            "start": "zero",
            "train": "lora" if self.lora else "all",
            "competition": self.competition,
            "learn_competition": False,
            "window": self.window,
            "rank": self.lora or 1,
        }
        return {
            "model": self.model,
            "units": self.units,
            "marker": self.marker,
            "longest_unit": self.longest_unit,
            "length": self.length,
            "addresses": addresses,
            "train": asdict(config),
            "corpus": text.description,
        }

    def _train(
        self,
        config: TrainConfig,
        tokenizer: Any,
        ids: Encoded,
        settings: dict[str, Any],
        device: str,
        console: Console,
    ) -> dict[str, Any]:
        import transformers

        from contentrope.hf.finetune import GATE_SHARE, CausalLM, Gated
        from contentrope.hf.saving import save_pretrained

        original = self._original(device)
        before = self._perplexities(CausalLM(original), ids) if is_first_process() else {}
        stepper = stepper_for(self._converted(original, tokenizer, config.seed), config)
        windows = Windows(ids.training, self.length, device)
        fall = max(1, round(GATE_SHARE * config.steps))
        batches = Gated(windows, fall) if self.positions == "gated" else windows
        last = fit(stepper, batches, self.out, self.model, console, settings, save_every=self.save_every)
        whole = whole_model(stepper, lambda: self._converted(self._original(device), tokenizer, config.seed))
        if whole is None:
            return {}
        save_pretrained(whole.model, self.out / "model", tokenizer)
        return outcome(whole, last, stepper, device) | {
            "trained_parameters": sum(p.numel() for p in whole.parameters() if p.requires_grad),
            "transformers": transformers.__version__,
            "before": before,
            "after": self._perplexities(whole, ids),
        }

    def _original(self, device: str) -> Any:
        from contentrope.hf.plain import load_model

        # Changes of low rank leave the weights as they are, so these may stay in their own precision.
        return load_model(self.model, dtype="auto" if self.lora else "float32", device=device)

    def _converted(self, model: Any, tokenizer: Any, seed: int) -> nn.Module:
        import contentrope.hf as chf
        from contentrope.hf.finetune import CausalLM, units_named, with_lora

        with seeded(seed):  # LoRA begins at random
            chf.attach(
                model,
                tokenizer,
                units=units_named(self.units),
                marker=self.marker,
                max_length=self.longest_unit,
                window=self.window,
                competition=self.competition,
            )
            return CausalLM(with_lora(model, self.lora) if self.lora else model)

    def _perplexities(self, model: nn.Module, ids: Encoded) -> dict[str, float | None]:
        """Perplexity of the held-out text by window length, over the same tokens where the longer windows fit."""
        lengths = [n for n in (self.length, LONGER * self.length) if n < len(ids.held_out)]
        scored = min(len(ids.held_out) - 1, max(MOST_SCORED, lengths[-1])) // lengths[-1] * lengths[-1]
        return {
            str(n): finite_or_none(perplexity(model, ids.held_out, n, max_tokens=scored, batch_tokens=n))
            for n in lengths
        }


def _summary(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{found['model']}: {found['trained_parameters']:,} of {found['parameters']:,} parameters trained, "
        f"loss {found['final_loss']:.3f} at the end"
    ]
    for length, before in found["before"].items():
        after = shown(found["after"][length])
        lines.append(f"held-out perplexity in windows of {int(length):,}: {shown(before)} before, {after} after")
    return lines
