"""``contentrope train``: one model on one text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import arg

from contentrope.cli.options import ALL, Device, Text, chosen_device, one, require_folder, require_seed
from contentrope.cli.training import TrainOptions, fit, outcome, run_once, whole_model
from contentrope.corpora import Corpus, load_corpus
from contentrope.errors import InputError
from contentrope.evaluation import perplexity, shown
from contentrope.model import Transformer
from contentrope.results import finite_or_none
from contentrope.text_model import save_text_model
from contentrope.training import TrainConfig, Windows, local_device, stepper_for
from contentrope.training.seeds import fresh_model, seeded
from contentrope.training.sizes import ModelSize, character_model


@dataclass(frozen=True)
class Train:
    """Train one character model on a text; its units are lines.

    - DIR/model: weights, settings and vocabulary, for `contentrope evaluate` and `generate`
    - DIR/train.json: all settings, the last loss, the perplexity of the held-out text
    - DIR/metrics.jsonl: the course of the training
    - DIR/checkpoint, until it is done: the same command again continues where it was stopped

    Example: contentrope train --text shakespeare --variant content:competition=1 --out runs/mine

    Several GPUs: accelerate launch --multi_gpu -m contentrope train --text shakespeare --out runs/mine
    """

    text: Text
    """Tiny Shakespeare, the sources of Python's standard library, or a text file or folder."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Folder for everything that is written."""
    variant: Annotated[str, arg(metavar="VARIANT")] = "content"
    """Addressing: scheme, or scheme:option=value,option=value; `contentrope info` lists the schemes."""
    size: ModelSize = field(default_factory=ModelSize)
    length: int = 256
    """Characters per training window."""
    characters: Annotated[int | None, one(int, "INT"), ALL] = None
    """Only the first characters of the text; nine tenths of them are trained on, the rest is held out."""
    training: TrainOptions = field(default_factory=TrainOptions)
    save_every: int = 500
    """Updates between two checkpoints."""
    tensorboard: bool = False
    """Also write DIR/tensorboard."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        device, config = chosen_device(self.device), self.training.checked()
        require_seed(config.seed)
        require_folder(self.out)
        corpus = load_corpus(self.text, characters=self.characters)
        settings = self._settings(config, corpus)

        def work(console: Console) -> dict[str, Any]:
            return self._train(config, corpus, settings, str(local_device(device)), console)

        advice = (
            f"To read longer texts: contentrope evaluate {self.out} --text TEXT. "
            f"To write: contentrope generate {self.out}"
        )
        run_once("train", self.out, settings, [self.text], work, _summary, advice)

    def _settings(self, config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
        """What decides the numbers, as JSON."""
        if len(corpus.held_out) <= self.length:
            raise InputError(
                f"the held-out part of {self.text!r} has {len(corpus.held_out)} characters, too few for a window of "
                f"length {self.length} and one to predict; take a longer text, or a shorter length"
            )
        model = character_model(self.variant, self.size, corpus.vocabulary)
        return {
            "variant": self.variant,
            "model": model.to_dict(),
            "length": self.length,
            "train": asdict(config),
            "corpus": corpus.description,
        }

    def _train(
        self, config: TrainConfig, corpus: Corpus, settings: dict[str, Any], device: str, console: Console
    ) -> dict[str, Any]:
        size = character_model(self.variant, self.size, corpus.vocabulary)
        stepper = stepper_for(fresh_model(size, config.seed, device), config)
        last = fit(
            stepper,
            Windows(corpus.training, self.length, device),
            self.out,
            self.variant,
            console,
            settings,
            save_every=self.save_every,
            tensorboard=self.tensorboard,
        )
        model = whole_model(stepper, lambda: Transformer(size).to(device))
        if model is None:
            return {}
        save_text_model(self.out / "model", model, corpus.vocabulary, corpus.description)
        model.backend = "tiled"
        with seeded(config.seed):  # for schemes that draw at random
            held_out = finite_or_none(perplexity(model, corpus.held_out, self.length))
        facts = outcome(model, last, stepper, device)
        return {"seed": config.seed, "held_out_perplexity": held_out, **facts}


def _summary(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{found['variant']}: {found['parameters']:,} parameters, loss {found['final_loss']:.3f} at the end, "
        f"held-out perplexity {shown(found['held_out_perplexity'])} in windows of {found['length']:,} characters"
    ]
    if found["corpus"]["unseen"]:
        lines.append(
            f"{found['corpus']['unseen']:,} of {found['corpus']['held_out']:,} held-out characters do not occur in the "
            "training part; U+FFFD stands for them"
        )
    return lines
