"""``contentrope evaluate``: how well a model reads a text, by how much of it it sees at once.

Models of characters are measured here, Hugging Face models in ``evaluate_tokens.py``.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from torch import Tensor
from tyro.conf import Positional, arg

from contentrope.cli.evaluate_tables import show_distant, show_perplexity
from contentrope.cli.generate import checkpoint_named
from contentrope.cli.options import Device, chosen_device, one, require_folder, require_positive, require_seed
from contentrope.cli.tables import say
from contentrope.corpora import CharVocabulary, read_text
from contentrope.corpora import Text as SplitText
from contentrope.errors import InputError
from contentrope.evaluation import perplexity, use_of_distant_text
from contentrope.model import Transformer
from contentrope.outputs import require_result
from contentrope.results import environment, finite_or_none, write_json
from contentrope.text_model import load_text_model, training_text_of
from contentrope.training.seeds import seeded

RESULT = {"settings", "model", "text", "scored", "perplexity", "environment"}
"""What a result file has, by which it is known."""


@dataclass(frozen=True)
class Evaluate:
    """Perplexity of a saved model on a text, in windows of growing length, all over the same characters.

    Example: contentrope evaluate runs/mine --text shakespeare --lengths 256 4096 --distant 4096

    A Hugging Face model, with addresses or without, also solves tasks, and all its lengths are in tokens:
    contentrope evaluate --model runs/smol --text book.txt --tasks needle,kv --task-lengths 4096 8192
    """

    folder: Positional[Annotated[Path | None, one(Path, "MODEL_DIR"), arg(help_behavior_hint="(or --model)")]] = None
    """Folder that `contentrope train` or `finetune` wrote, or one with model.safetensors and vocabulary.json."""
    model: Annotated[str | None, one(str, "MODEL"), arg(help_behavior_hint="(default: MODEL_DIR)")] = None
    """The same as an option; also a folder with any Hugging Face model, or its name on the hub."""
    text: Annotated[
        str | None, one(str, "{shakespeare,stdlib,PATH}"), arg(help_behavior_hint="(required without --tasks)")
    ] = None
    """Tiny Shakespeare, the sources of Python's standard library, or a text file or folder."""
    part: Literal["held-out", "whole"] = "held-out"
    """The last tenth of the text, which training leaves out, or all of it."""
    characters: Annotated[
        int | None, one(int, "INT"), arg(help_behavior_hint="(default: as in training on this text, else all)")
    ] = None
    """Only the first characters of the text, before the last tenth of them is taken."""
    lengths: Annotated[tuple[int, ...], arg(metavar="INT [INT ...]")] = (256, 512, 1024, 2048, 4096)
    """Characters per window; tokens of a Hugging Face model."""
    scored: Annotated[
        int | None,
        one(int, "INT"),
        arg(help_behavior_hint="(default: all characters; 131,072 tokens of a Hugging Face model)"),
    ] = None
    """At most so many characters or tokens are predicted, or one window of the greatest length."""
    distant: int = 0
    """Also measure the use of distant text, in windows of so many characters or tokens; 0 leaves it out."""
    recent: int = 512
    """Characters or tokens at the end of such a window that are predicted while the text before them is changed."""
    tasks: Annotated[str | None, one(str, "TASK,..."), arg(help_behavior_hint="(default: none)")] = None
    """Tasks for a Hugging Face model: needle, ruler, kv, babi, or single ones such as vt, qa_1 and kv_1000."""
    task_lengths: Annotated[tuple[int, ...], arg(metavar="INT [INT ...]")] = (4096,)
    """Tokens per task, answer included."""
    examples: int = 20
    """Of each task at each length."""
    chat: bool = False
    """Ask tasks through the chat template of the tokenizer."""
    seed: int = 0
    """For schemes that draw positions at random, for the order of shuffled text, and for tasks."""
    out: Annotated[Path | None, one(Path, "FILE.json"), arg(help_behavior_hint="(default: printed only)")] = None
    """File to write the numbers and all settings to."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        console, device = Console(), chosen_device(self.device)
        self._check()
        name = str(self.folder) if self.model is None else str(self.model)
        checkpoint = checkpoint_named(name)
        if checkpoint is not None and (self.model is not None or Path(name).exists()):
            from contentrope.cli.evaluate_tokens import evaluate_tokens

            evaluate_tokens(self, checkpoint, device, console)
        else:
            self._evaluate_characters(name, device, console)

    def write(self, console: Console, found: dict[str, Any], device: str) -> None:
        if self.out is not None:
            write_json(self.out, found | {"environment": environment(device)})
            say(console, f"written: {self.out}")

    @property
    def settings(self) -> dict[str, Any]:
        """All options, as JSON."""
        settings = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items() if name != "out"}
        folder = settings.pop("folder")
        return settings | {"model": self.model or folder}

    def _check(self) -> None:
        require_seed(self.seed)
        if (self.folder is None) == (self.model is None):
            raise InputError("name one model: contentrope evaluate MODEL_DIR, or --model MODEL")
        if self.text is None and self.tasks is None:
            raise InputError("say what to read: --text TEXT, and for a Hugging Face model also --tasks TASK,...")
        for name, lengths in (("lengths", self.lengths), ("task-lengths", self.task_lengths)):
            if not lengths or min(lengths) < 1:
                raise InputError(f"{name} must be one or more numbers of at least 1, got {lengths}")
        require_positive(examples=self.examples, scored=1 if self.scored is None else self.scored)
        if self.distant and self.part == "whole":
            raise InputError("--distant needs --part held-out: the other part is what replaces the distant text")
        if self.distant and not 1 <= self.recent < self.distant:
            raise InputError(f"recent {self.recent} must be at least 1 and less than distant {self.distant}")
        if self.out is not None:
            require_folder(self.out.parent)
            if self.out.is_dir():
                raise InputError(f"--out {self.out} is a folder; name a file, such as {self.out / 'evaluation.json'}")
            require_result(self.out, lambda found: found.keys() >= RESULT)

    def _evaluate_characters(self, folder: str, device: str, console: Console) -> None:
        if self.tasks is not None or self.text is None:
            raise InputError(f"--tasks are for Hugging Face models, and {folder} is none; give --text without --tasks")
        model, vocabulary = load_text_model(folder, device=device, backend="tiled")
        trained_on = training_text_of(folder)
        text = self._text(self.text, trained_on)
        scored = text.held_out if self.part == "held-out" else text.whole
        ids = vocabulary.encode_tensor(scored)
        found = self._describe(text, trained_on, scored, vocabulary) | {"model": model.config.to_dict()}
        self._announce(console, self.text, found)
        with seeded(self.seed):
            found |= self._measure(model, ids, vocabulary.encode_tensor(text.training) if self.distant else None)
        show_perplexity(console, "characters", found)
        show_distant(console, "characters", self.recent, found)
        self.write(console, found, device)

    def _text(self, name: str, trained_on: dict[str, Any] | None) -> SplitText:
        """Cut as it was cut for training: the held-out part must be what the model has not seen."""
        text = read_text([name], self.characters)
        if self.characters is None and trained_on is not None and trained_on["name"] == text.name:
            return SplitText(text.name, text.whole[: trained_on["characters"]])
        return text

    def _describe(
        self, text: SplitText, trained_on: dict[str, Any] | None, scored: str, vocabulary: CharVocabulary
    ) -> dict[str, Any]:
        longest, described = max(self.lengths), text.description
        if len(scored) <= max(longest, self.distant):
            raise InputError(
                f"windows of {max(longest, self.distant)} characters do not fit: the text leaves "
                f"{len(scored) - 1} to score; take a longer text, or shorter lengths"
            )
        return {
            "settings": self.settings,
            "trained_on": trained_on,
            "same_text_as_in_training": trained_on and trained_on.get("sha256") == described["sha256"],
            "text": {"characters": len(text.whole), "sha256": described["sha256"], "part": len(scored)},
            "unseen": vocabulary.unseen(scored),
            "scored": self._limit(len(scored)),
        }

    def _limit(self, characters: int) -> int:
        """What whole windows of the greatest length hold."""
        longest = max(self.lengths)
        most = characters - 1 if self.scored is None else min(characters - 1, max(self.scored, longest))
        return most // longest * longest

    def _announce(self, console: Console, name: str, found: dict[str, Any]) -> None:
        what = f"held-out part of {name}" if self.part == "held-out" else f"whole of {name}"
        say(
            console,
            f"{what}: {found['text']['part']:,} characters, {found['scored']:,} scored, "
            f"{found['unseen']:,} unseen in training",
        )
        trained_on = found["trained_on"] or {"name": None}
        same_name = trained_on["name"] == os.path.basename(os.path.abspath(name))
        if self.part == "held-out" and same_name and not found["same_text_as_in_training"]:
            say(
                console,
                f"note: the model was trained on {trained_on['training']:,} of {trained_on['characters']:,} characters "
                f"of {trained_on['name']!r}; this is another cut, so it may have seen what is held out here.",
            )

    def _measure(self, model: Transformer, ids: Tensor, other: Tensor | None) -> dict[str, Any]:
        limit = self._limit(len(ids))
        values = {str(n): finite_or_none(perplexity(model, ids, n, max_tokens=limit)) for n in self.lengths}
        found: dict[str, Any] = {"perplexity": values}
        if other is not None:
            found |= use_of_distant_text(model, ids, self.distant, elsewhere=other, near=self.recent)
        return found
