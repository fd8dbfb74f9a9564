"""``contentrope finetune``: content addresses for a Hugging Face model, trained on texts of one's own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from tyro.conf import arg

from contentrope.attention.api import check_window
from contentrope.cli.conversion import Conversion, summary
from contentrope.cli.options import (
    ALL,
    NONE,
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
from contentrope.cli.training import TrainOptions, run_once
from contentrope.errors import InputError
from contentrope.hf.hub import require_login, upload
from contentrope.schemes.base import LARGEST
from contentrope.training import TrainConfig, local_device

if TYPE_CHECKING:
    from contentrope.hf.data import Data, Reader


@dataclass(frozen=True)
class Finetune:
    """Give a Hugging Face model content addresses and train it on texts, so that it reads beyond its training length.

    - DIR/model: the converted model (with --lora: its adapter), tokenizer and addresses, for `contentrope generate`
    - DIR/finetune.json: all settings, and the perplexity of held-out text before and after, by length
    - DIR/metrics.jsonl: the course of the training
    - DIR/checkpoint, until it is done: the same command again continues where it was stopped

    Example: contentrope finetune --model ./SmolLM2-135M --text my-texts/ --units line --lora 16 --out runs/smol

    From a file: contentrope finetune --config run.yaml --out runs/smol

    To read documents from a store: contentrope finetune --model DIR --reader --data questions.jsonl --out runs/reader

    Several GPUs: accelerate launch --multi_gpu -m contentrope finetune --model DIR --text my-texts/ --out runs/smol
    """

    model: Annotated[str, arg(metavar="MODEL")]
    """Folder with a causal language model and its tokenizer, or its name on the hub."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Folder for everything that is written."""
    text: Annotated[tuple[str, ...], several(str, "TEXT"), NONE] = ()
    """Files or folders; also shakespeare, or stdlib, the sources of Python's standard library."""
    data: Annotated[str | None, one(str, "FILE.jsonl"), NONE] = None
    """Conversations, beside or instead of --text: lines with "messages", by the chat template; answers count. With
    --reader lines have "documents" too; nq: Natural Questions with their passages, those that nothing scores."""
    reader: bool = False
    """Train to answer from a store: documents are memory units, each sees only itself; questions read them."""
    distractors: Annotated[int | None, one(int, "INT"), arg(help_behavior_hint="(default: as many as fit)")] = None
    """With --reader, documents of other lines that stand beside a line's own, at most."""
    retrieval: float = 0.0
    """Share of the rows in which facts are hidden in the text and asked for at its end: it teaches to look far back."""
    config: Annotated[Path | None, one(Path, "FILE.yaml"), NONE] = None
    """File with options, or the finetune.json of another run; what is said on the command line goes before it."""
    units: Annotated[str, arg(metavar="UNITS")] = "line"
    """What has an address: line, sentence, paragraph, record, document, or a number of tokens."""
    marker: Marker = None
    """What ends a record or document."""
    longest_unit: int = 256
    """Tokens; a unit that gets longer ends there."""
    length: int = 512
    """Tokens per training window."""
    lengths: Annotated[tuple[int, ...], several(int, "INT"), arg(help_behavior_hint="(default: doubling)")] = ()
    """Tokens per window of held-out text when perplexity is measured; by default below and above the model's limit."""
    characters: Annotated[int | None, one(int, "INT"), ALL] = None
    """Only the first characters of the text; nine tenths of them are trained on, the rest is held out."""
    positions: Literal["gated", "local"] = "local"
    """local: counted inside each unit at once; gated: from global to local in the first quarter of the training."""
    window: Annotated[int | None, one(int, "INT"), arg(help_behavior_hint="(default: by the model and --length)")] = (
        None
    )
    """Units that began at most so many tokens ago are read as by the original model; 0: only the unit itself is. By
    default a quarter of what the model reads well, and at most half of --length; 0 with --positions gated."""
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
    push_to_hub: Annotated[str | None, one(str, "NAME"), NONE] = None
    """Upload the converted model under this name, as a private one; `hf auth login` comes first."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        from contentrope.hf.data import read_data
        from contentrope.hf.plain import config_of, load_tokenizer, require_embedded, require_transformers

        device, config = chosen_device(self.device), self.training.checked()
        require_seed(config.seed)
        require_folder(self.out)
        self._check()
        require_transformers(peft=bool(self.lora))
        original, tokenizer = config_of(self.model), load_tokenizer(self.model)
        data = read_data(
            self.text, self.data, self.characters, tokenizer, self.length, self._reader(original, tokenizer)
        )
        for part in data.ids:
            require_embedded(part, original, self.model)
        settings = self._settings(config, original, data)
        if self.push_to_hub is not None and is_first_process():
            require_login(self.push_to_hub)

        def work(console: Console) -> dict[str, Any]:
            return self._train(config, tokenizer, data, settings, str(local_device(device)), console)

        inputs = [self.model, *self.text, *filter(None, [self.data])]
        advice = f"To write with it: contentrope generate --model {self.out}"
        run_once("finetune", self.out, settings, inputs, work, summary, advice)
        if self.push_to_hub is not None and is_first_process():
            print(f"uploaded: {upload(self.out / 'model', self.push_to_hub)}")

    def _reader(self, original: Any, tokenizer: Any) -> Reader | None:
        from contentrope.hf.data import Reader
        from contentrope.hf.documents import segmenter_of

        if not self.reader:
            return None
        segmenter = segmenter_of(original, tokenizer, self.units, self.marker, self.longest_unit)
        return Reader(segmenter, self.distractors)

    def _train(self, *work: Any) -> dict[str, Any]:
        return Conversion(self, *work).run()

    def _check(self) -> None:
        require_positive(length=self.length, longest_unit=self.longest_unit)
        require_no_file(self.model)
        if abs(self.competition) > LARGEST:
            raise InputError(f"competition is at most {LARGEST:g}, got {self.competition}")
        check_window(self.window or 0)
        if self.window and self.positions != "local":
            raise InputError(f"positions {self.positions!r}: with window {self.window} they are the model's own")
        if self.window and self.window >= self.length:
            raise InputError(
                f"window {self.window} must be smaller than length {self.length}: else no address is read in training"
            )
        if self.reader and self.positions != "local":
            raise InputError(
                f"positions {self.positions!r}: a document that is read alone does not know what will stand before it; "
                "with reader they are local"
            )
        if self.distractors is not None and (self.distractors < 0 or not self.reader):
            raise InputError(f"distractors is a number of documents, 0 or more, with --reader; got {self.distractors}")
        if self.lora < 0:
            raise InputError(f"lora must be 0, for all weights, or a rank of at least 1; got {self.lora}")
        if not 0.0 <= self.retrieval <= 1.0:
            raise InputError(f"retrieval must be a share of the rows, from 0 to 1, got {self.retrieval}")
        if self.retrieval and not self.text:
            raise InputError(f"retrieval {self.retrieval}: facts are hidden in texts; name some with --text")

    def _settings(self, config: TrainConfig, original: Any, data: Data) -> dict[str, Any]:
        """What decides the numbers, as JSON."""
        from contentrope.hf.measuring import lengths_for, near_window, reading_limit, require_lengths

        limit, held_out = reading_limit(original), len(data.text.held_out)
        default = near_window(original, self.length, self.longest_unit) if self.positions == "local" else 0
        lengths: list[int] = []
        if self.lengths or held_out:
            own = bool(self.lengths)
            lengths = (
                require_lengths(self.lengths, held_out)
                if own
                else lengths_for(limit or self.length, self.length, held_out)
            )
        addresses = {
            "positions": self.positions,
            "start": "zero",
            "train": "lora" if self.lora else "all",
            "competition": self.competition,
            "learn_competition": False,
            "window": default if self.window is None else self.window,
            "rank": self.lora or 1,
        }
        return {
            "model": self.model,
            "limit": limit,
            "units": self.units,
            "marker": self.marker,
            "longest_unit": self.longest_unit,
            "length": self.length,
            "lengths": lengths,
            "retrieval": self.retrieval,
            "addresses": addresses,
            "train": asdict(config),
            **({"reader": {"distractors": self.distractors}} if self.reader else {}),
            **data.description,
        }
