"""``contentrope train``: one model on one text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import arg

from contentrope.cli.options import (
    ALL,
    Device,
    Text,
    chosen_device,
    is_first_process,
    one,
    require_folder,
    require_seed,
)
from contentrope.cli.tables import SavingConsole, say
from contentrope.config import ModelConfig, differences
from contentrope.corpora import Corpus, load_corpus
from contentrope.errors import InputError
from contentrope.experiments.display import progress_display
from contentrope.experiments.evaluation import perplexity, shown
from contentrope.experiments.growth.config import model_config
from contentrope.experiments.saved import save_text_model
from contentrope.experiments.sizes import ModelSize
from contentrope.experiments.suite import finite_or_none, fresh_model, seeded
from contentrope.model import Transformer
from contentrope.results import environment, read_json, write_json
from contentrope.training import MetricsLog, Stepper, StepReport, TrainConfig, Windows, local_device, stepper_for, train


class TrainOptions(TrainConfig):
    """Settings of the training."""

    def __post_init__(self) -> None:
        """Left to :meth:`checked`: tyro would wrap an error raised while it parses in words of its own."""

    def checked(self) -> TrainConfig:
        return TrainConfig(**vars(self))


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
        console = SavingConsole(quiet=not is_first_process())
        if holds_this_run(self.out / "train.json", settings):
            say(console, f"{self.out} is finished already.")
        else:
            self._train(config, corpus, settings, str(local_device(device)), console)
        if is_first_process():
            with as_written(self.out / "train.json") as found:
                show_run(console, self.out, found)

    def _settings(self, config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
        """What decides the numbers, as JSON."""
        if len(corpus.held_out) <= self.length:
            raise InputError(
                f"the held-out part of {self.text!r} has {len(corpus.held_out)} characters, too few for a window of "
                f"length {self.length} and one to predict; take a longer text, or a shorter length"
            )
        model = model_config(self.variant, self.size, corpus.vocabulary)
        return {
            "variant": self.variant,
            "model": model.to_dict(),
            "length": self.length,
            "train": asdict(config),
            "corpus": corpus.description,
        }

    def _train(
        self, config: TrainConfig, corpus: Corpus, settings: dict[str, Any], device: str, console: Console
    ) -> None:
        model = fresh_model(model_config(self.variant, self.size, corpus.vocabulary), config.seed, device)
        stepper = stepper_for(model, config)
        with MetricsLog(self.out, self.tensorboard) as metrics, progress_display(console) as progress:
            last = train(
                stepper,
                Windows(corpus.training, self.length, device),
                checkpoint=self.out / "checkpoint",
                on_step=lambda report: progress.trained(self.variant, report),
                save_every=self.save_every,
                settings={name: settings[name] for name in ("variant", "model", "length", "corpus")},
                metrics=metrics,
            )
        whole = _whole_model(stepper, model.config, device)
        if whole is not None:
            save_text_model(self.out / "model", whole, corpus.vocabulary, corpus.description)
            found = _outcome(whole, corpus, self.length, last, config.seed)
            found |= {"acceleration": stepper.acceleration, "processes": stepper.team.size}
            found["environment"] = environment(device)
            write_json(self.out / "train.json", settings | found)
            shutil.rmtree(self.out / "checkpoint")  # train.json says that the run is finished


def holds_this_run(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the file that a run writes last is there; refused if it was written by another one."""
    if not path.exists():
        return False
    stored = read_json(path)
    if not isinstance(stored, dict):
        command = f"contentrope {path.stem}"
        raise InputError(f"{path} is not what `{command}` writes; choose another folder, or delete it")
    unlike = differences(settings, {name: stored.get(name) for name in settings})
    if unlike:
        raise InputError(f"{path.parent} holds another finished run ({'; '.join(unlike)}); choose another folder")
    return True


@contextmanager
def as_written(path: Path) -> Iterator[Mapping[str, Any]]:
    """What the file of a finished run says, to be shown; one that says it otherwise than it was written is refused."""
    try:
        yield read_json(path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is damaged ({error!r}); restore it from a copy, or delete it to train again"
        ) from error


def _whole_model(stepper: Stepper, config: ModelConfig, device: str) -> Transformer | None:
    """The trained model in one piece, in the first process; the others only hand over their share of it."""
    tensors = stepper.pack()
    if not is_first_process():
        return None
    model = Transformer(config).to(device)
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    return model


def _outcome(model: Transformer, corpus: Corpus, length: int, last: StepReport, seed: int) -> dict[str, Any]:
    model.backend = "tiled"
    with seeded(seed):  # for schemes that draw at random
        held_out = perplexity(model, corpus.held_out, length)
    return {
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "final_loss": last.loss,
        "held_out_perplexity": finite_or_none(held_out),
        "training_seconds": last.seconds,
        "tokens_per_second": last.tokens_per_second,
    }


def show_run(console: Console, folder: Path, found: Mapping[str, Any]) -> None:
    say(
        console,
        f"{found['variant']}: {found['parameters']:,} parameters, loss {found['final_loss']:.3f} at the end, "
        f"held-out perplexity {shown(found['held_out_perplexity'])} in windows of {found['length']:,} characters",
    )
    if found["corpus"]["unseen"]:
        say(
            console,
            f"{found['corpus']['unseen']:,} of {found['corpus']['held_out']:,} held-out characters do not occur in the "
            "training part; U+FFFD stands for them",
        )
    for name in ("model", "metrics.jsonl", "train.json"):
        say(console, f"written: {folder / name}")
    say(
        console,
        f"To read longer texts: contentrope evaluate {folder} --text TEXT. To write: contentrope generate {folder}",
    )
