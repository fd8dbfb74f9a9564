"""``contentrope generate``: text from a saved model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from tyro.conf import Positional, arg

from contentrope.cli.generate_hf import Sampling, checkpoint_named, generate_text
from contentrope.cli.options import ALL, Device, chosen_device, one, require_seed
from contentrope.cli.texts import encoded
from contentrope.corpora import CharVocabulary, text_of
from contentrope.errors import InputError
from contentrope.experiments.saved import load_text_model
from contentrope.experiments.suite import seeded
from contentrope.generation import generate, generate_stream
from contentrope.model import Transformer

NEW_LINE = "\n"


@dataclass(frozen=True)
class Generate:
    """Continue a prompt with a saved model, token by token. The prompt may be longer than any training window.

    Example: contentrope generate runs/mine --prompt "ROMEO:" --tokens 400 --temperature 0.8

    A Hugging Face model, with addresses or without: contentrope generate --model runs/smol --prompt "Once"
    """

    folder: Positional[Annotated[Path | None, one(Path, "MODEL_DIR"), arg(help_behavior_hint="(or --model)")]] = None
    """Folder that `contentrope train` or `finetune` wrote, or one with model.safetensors and vocabulary.json."""
    model: Annotated[str | None, one(str, "MODEL"), arg(help_behavior_hint="(default: MODEL_DIR)")] = None
    """The same as an option; also a folder with any Hugging Face model, or its name on the hub."""
    prompt: Annotated[str | None, one(str, "TEXT"), arg(help_behavior_hint="(default: a new line)")] = None
    """Text to continue."""
    prompt_file: Annotated[Path | None, one(Path, "PATH"), arg(help_behavior_hint="(default: none)")] = None
    """File with the text to continue, instead of --prompt."""
    tokens: int = 500
    """Characters, or tokens of a Hugging Face model, to add at most."""
    temperature: float = 1.0
    """Below 1 the likely characters become likelier; 0 always takes the likeliest."""
    top_k: Annotated[int | None, one(int, "INT"), ALL] = None
    """Draw from so many of the likeliest characters only."""
    top_p: Annotated[float | None, one(float, "FLOAT"), ALL] = None
    """Draw from the likeliest characters that together have this probability."""
    seed: int = 0
    """Decides what is drawn: the same seed writes the same text again."""
    stop_at_unit_end: bool = False
    """Stop at the end of the first unit, which is a line unless the model was trained otherwise."""
    samples: int = 1
    """Texts to write; a single one appears as it is drawn."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, got {self.samples}")
        require_seed(self.seed)
        name, device, prompt = self._name(), chosen_device(self.device), self._prompt()
        checkpoint = checkpoint_named(name)
        if checkpoint is not None and (self.model is not None or Path(name).exists()):
            generate_text(checkpoint, prompt, self._sampling(), device)
            return
        model, vocabulary = load_text_model(name, device=device)
        ids = encoded(prompt, vocabulary)
        if ids.unseen:
            print(f"note: {ids.unseen} characters of the prompt are unseen in training", file=sys.stderr)
        options = self._options(device)
        rows = ids.ids.to(device).expand(self.samples, -1)
        with seeded(self.seed):  # for schemes that draw at random
            if self.samples == 1:
                write_as_drawn(model, vocabulary, rows, prompt, self.tokens, options)
            else:
                write_samples(model, vocabulary, rows, prompt, self.tokens, options)

    def _name(self) -> str:
        if (self.folder is None) == (self.model is None):
            raise InputError("name one model: contentrope generate MODEL_DIR, or --model MODEL")
        return str(self.folder) if self.model is None else self.model

    def _sampling(self) -> Sampling:
        names = ("tokens", "temperature", "top_k", "top_p", "stop_at_unit_end", "samples", "seed")
        return Sampling(**{name: getattr(self, name) for name in names})

    def _prompt(self) -> str:
        if self.prompt is not None and self.prompt_file is not None:
            raise InputError("give --prompt or --prompt-file, not both")
        prompt = text_of(self.prompt_file) if self.prompt_file is not None else self.prompt
        return NEW_LINE if prompt is None else prompt

    def _options(self, device: str) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "stop_at_unit_end": self.stop_at_unit_end,
            "generator": torch.Generator(device).manual_seed(self.seed),
        }


def write_as_drawn(
    model: Transformer, vocabulary: CharVocabulary, ids: torch.Tensor, prompt: str, count: int, options: dict[str, Any]
) -> None:
    columns = generate_stream(model, ids, count, **options)
    sys.stdout.write(prompt)
    sys.stdout.flush()
    for column in columns:
        sys.stdout.write(vocabulary.decode(column.ids[0]))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def write_samples(
    model: Transformer, vocabulary: CharVocabulary, ids: torch.Tensor, prompt: str, count: int, options: dict[str, Any]
) -> None:
    found = generate(model, ids, count, **options)
    length = ids.shape[1]
    for number, (row, valid) in enumerate(zip(found.ids[:, length:], found.valid[:, length:], strict=True), start=1):
        print(f"--- sample {number} of {len(found.ids)}")
        print(prompt + vocabulary.decode(row[valid]))
