"""``contentrope finetune``: content addresses for a Hugging Face model, trained on texts of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import arg

from contentrope.anchors import dealt_out
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
from contentrope.cli.tables import SavingConsole, say
from contentrope.cli.train import TrainOptions, holds_this_run, named_if_damaged
from contentrope.errors import InputError
from contentrope.experiments.display import progress_display
from contentrope.experiments.evaluation import perplexity, shown
from contentrope.experiments.retrofit.config import GATE_SHARE, LONGEST_UNIT
from contentrope.experiments.retrofit.conversions import Addresses, Positions
from contentrope.experiments.retrofit.texts import Encoded, Text, encode, read_text
from contentrope.experiments.suite import finite_or_none, seeded
from contentrope.outputs import OutputFolder
from contentrope.results import environment, write_json
from contentrope.schemes.base import LARGEST
from contentrope.training import (
    MetricsLog,
    Stepper,
    StepReport,
    TrainConfig,
    Windows,
    local_device,
    stepper_for,
    train,
)
from contentrope.training import checkpoint as checkpoints
from contentrope.training.metrics import METRICS

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
    longest_unit: int = LONGEST_UNIT
    """Tokens; a unit that gets longer ends there."""
    length: int = 512
    """Tokens per training window."""
    characters: Annotated[int | None, one(int, "INT"), ALL] = None
    """Only the first characters of the text; nine tenths of them are trained on, the rest is held out."""
    positions: Positions = "local"
    """local: counted inside each unit at once; gated: from global to local in the first quarter of the training."""
    competition: float = 1.0
    """Exponent by which the number of earlier units counts against them; 0 as in the paper."""
    anchors: Annotated[tuple[int, ...], several(int, "INT")] = ()
    """How many units back the one lies from which an open unit goes on, dealt out to the key/value heads; 0: none."""
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
        from contentrope.hf.plain import config_of, key_heads, load_tokenizer, require_embedded, require_transformers

        device, config = chosen_device(self.device), self.training.checked()
        require_seed(config.seed)
        require_folder(self.out)
        options = self._options()
        require_transformers(peft=bool(self.lora))
        original = config_of(self.model)
        dealt_out(self.anchors, key_heads(original))
        text, tokenizer = read_text(self.text, self.characters), load_tokenizer(self.model)
        ids = encode(text, tokenizer)
        for part in (ids.training, ids.held_out):
            require_embedded(part, original, self.model)
        settings = self._settings(config, options, text, ids)
        console = SavingConsole(quiet=not is_first_process())
        with OutputFolder(self.out, "finetune", leads=is_first_process()) as out:
            if holds_this_run(self.out / "finetune.json", settings):
                say(console, f"{self.out} is finished already.")
            else:
                out.claim("model", "finetune.json", METRICS, inputs=[self.model, *self.text])
                self._train(config, options, tokenizer, ids, settings, str(local_device(device)), console)
        if is_first_process():
            with named_if_damaged(self.out / "finetune.json") as found:
                show_run(console, self.out, found)

    def _options(self) -> Addresses:
        require_positive(length=self.length, longest_unit=self.longest_unit)
        require_no_file(self.model)
        if abs(self.competition) > LARGEST:
            raise InputError(f"competition is at most {LARGEST:g}, got {self.competition}")
        if self.lora < 0:
            raise InputError(f"lora must be 0, for all weights, or a rank of at least 1; got {self.lora}")
        return Addresses(
            positions=self.positions,
            train="lora" if self.lora else "all",
            competition=self.competition,
            anchors=self.anchors,
            rank=self.lora or 1,
        )

    def _settings(self, config: TrainConfig, options: Addresses, text: Text, ids: Encoded) -> dict[str, Any]:
        """What decides the numbers, as JSON."""
        if min(len(ids.training), len(ids.held_out)) <= self.length:
            raise InputError(
                f"the text has {len(ids.training)} tokens to train on and {len(ids.held_out)} held out, too few for "
                f"windows of length {self.length}; take a longer text, or a shorter length"
            )
        return {
            "model": self.model,
            "units": self.units,
            "marker": self.marker,
            "longest_unit": self.longest_unit,
            "length": self.length,
            "addresses": asdict(options),
            "train": asdict(config),
            "corpus": text.description,
        }

    def _train(
        self,
        config: TrainConfig,
        options: Addresses,
        tokenizer: Any,
        ids: Encoded,
        settings: dict[str, Any],
        device: str,
        console: Console,
    ) -> None:
        from contentrope.experiments.retrofit.reader import Gated, Reader
        from contentrope.hf.plain import load_model
        from contentrope.hf.writing import save_pretrained

        # Changes of low rank leave the weights as they are, so these may stay in their own precision.
        model = load_model(self.model, dtype="auto" if self.lora else "float32", device=device)
        before = self._perplexities(Reader(model), ids) if is_first_process() else {}
        reader = self._converted(model, tokenizer, options, ids, config.seed)
        stepper = stepper_for(reader, config)
        windows = Windows(ids.training, self.length, device)
        fall = max(1, round(GATE_SHARE * config.steps))
        batches = Gated(windows, fall) if options.positions == "gated" else windows
        with MetricsLog(self.out) as metrics, progress_display(console) as progress:
            last = train(
                stepper,
                batches,
                checkpoint=self.out / "checkpoint",
                on_step=lambda report: progress.trained(self.model, report),
                save_every=self.save_every,
                settings={name: value for name, value in settings.items() if name != "train"},
                metrics=metrics,
            )
        whole = self._whole(stepper, tokenizer, options, ids, device)
        if whole is not None:
            save_pretrained(whole.model, self.out / "model", tokenizer)
            found = _outcome(whole, last) | {"before": before, "after": self._perplexities(whole, ids)}
            found |= {"processes": stepper.team.size, "environment": environment(device)}
            write_json(self.out / "finetune.json", settings | found)
            checkpoints.drop(self.out / "checkpoint")  # finetune.json says that the run is finished

    def _converted(self, model: Any, tokenizer: Any, options: Addresses, ids: Encoded, seed: int) -> Any:
        from contentrope.experiments.retrofit.converting import units_named, with_addresses

        with seeded(seed):  # LoRA begins at random
            return with_addresses(
                model,
                tokenizer,
                options,
                ids.training,
                units=units_named(self.units),
                marker=self.marker,
                longest_unit=self.longest_unit,
            )

    def _whole(self, stepper: Stepper, tokenizer: Any, options: Addresses, ids: Encoded, device: str) -> Any:
        """The trained model in one piece, in the first process; the others only hand over their share of it."""
        from contentrope.hf.plain import load_model

        if stepper.team.size == 1:
            return stepper.model
        tensors = stepper.pack()
        if not is_first_process():
            return None
        model = load_model(self.model, dtype="auto" if self.lora else "float32", device=device)
        reader = self._converted(model, tokenizer, options, ids, stepper.config.seed)
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        reader.load_state_dict(weights)
        return reader

    def _perplexities(self, reader: Any, ids: Encoded) -> dict[str, float | None]:
        """Of held-out text by tokens read at once, over the same tokens where the longer windows fit."""
        lengths = [n for n in (self.length, LONGER * self.length) if n < len(ids.held_out)]
        scored = min(len(ids.held_out) - 1, max(MOST_SCORED, lengths[-1])) // lengths[-1] * lengths[-1]
        return {
            str(n): finite_or_none(perplexity(reader, ids.held_out, n, max_tokens=scored, batch_tokens=n))
            for n in lengths
        }


def _outcome(reader: Any, last: StepReport) -> dict[str, Any]:
    import transformers

    trained = sum(p.numel() for p in reader.parameters() if p.requires_grad)
    return {
        "parameters": sum(parameter.numel() for parameter in reader.parameters()),
        "trained_parameters": trained,
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "tokens_per_second": last.tokens_per_second,
        "transformers": transformers.__version__,
    }


def show_run(console: Console, folder: Path, found: Mapping[str, Any]) -> None:
    say(
        console,
        f"{found['model']}: {found['trained_parameters']:,} of {found['parameters']:,} parameters trained, "
        f"loss {found['final_loss']:.3f} at the end",
    )
    for length, before in found["before"].items():
        after = shown(found["after"][length])
        say(console, f"held-out perplexity in windows of {int(length):,}: {shown(before)} before, {after} after")
    for name in ("model", "metrics.jsonl", "finetune.json"):
        say(console, f"written: {folder / name}")
    say(console, f"To write with it: contentrope generate --model {folder}")
