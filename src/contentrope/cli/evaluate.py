"""``contentrope evaluate``: how well a saved model reads a text, by how much of it it sees at once."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from torch import Tensor
from tyro.conf import Positional, arg

from contentrope.cli.options import Device, Text, chosen_device, one, require_folder, require_seed
from contentrope.cli.tables import print_table, say
from contentrope.corpora import CharVocabulary, read_text
from contentrope.corpora import Text as SplitText
from contentrope.errors import InputError
from contentrope.evaluation import perplexity, shown, use_of_distant_text
from contentrope.model import Transformer
from contentrope.outputs import require_result
from contentrope.results import environment, finite_or_none, write_json
from contentrope.text_model import load_text_model, training_text_of
from contentrope.training.seeds import seeded

RESULT = {"settings", "model", "trained_on", "text", "unseen", "scored", "perplexity", "environment"}
"""What a result file has, by which it is known."""


@dataclass(frozen=True)
class Evaluate:
    """Perplexity of a saved model on a text, in windows of growing length, all over the same characters.

    Example: contentrope evaluate runs/mine --text shakespeare --lengths 256 4096 --distant 4096
    """

    model: Positional[Annotated[Path, arg(metavar="MODEL_DIR")]]
    """Folder that `contentrope train` wrote, or one with model.safetensors and vocabulary.json."""
    text: Text
    """Tiny Shakespeare, the sources of Python's standard library, or a text file or folder."""
    part: Literal["held-out", "whole"] = "held-out"
    """The last tenth of the text, which training leaves out, or all of it."""
    characters: Annotated[
        int | None, one(int, "INT"), arg(help_behavior_hint="(default: as in training on this text, else all)")
    ] = None
    """Only the first characters of the text, before the last tenth of them is taken."""
    lengths: Annotated[tuple[int, ...], arg(metavar="INT [INT ...]")] = (256, 512, 1024, 2048, 4096)
    """Characters per window."""
    distant: int = 0
    """Also measure the use of distant text, in windows of so many characters; 0 leaves it out."""
    recent: int = 512
    """Characters at the end of such a window that are predicted while the text before them is changed."""
    seed: int = 0
    """For schemes that draw positions at random, and for the order of shuffled text."""
    out: Annotated[Path | None, one(Path, "FILE.json"), arg(help_behavior_hint="(default: printed only)")] = None
    """File to write the numbers and all settings to."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        console, device = Console(), chosen_device(self.device)
        self._check()
        model, vocabulary = load_text_model(self.model, device=device, backend="tiled")
        trained_on = training_text_of(self.model)
        text = self._text(trained_on)
        scored = text.held_out if self.part == "held-out" else text.whole
        ids = vocabulary.encode_tensor(scored)
        found = self._describe(text, trained_on, scored, vocabulary) | {"model": model.config.to_dict()}
        self._announce(console, found)
        with seeded(self.seed):
            found |= self._measure(model, ids, vocabulary.encode_tensor(text.training) if self.distant else None)
        self._show(console, found)
        if self.out is not None:
            write_json(self.out, found | {"environment": environment(device)})
            say(console, f"written: {self.out}")

    def _check(self) -> None:
        require_seed(self.seed)
        if not self.lengths or min(self.lengths) < 1:
            raise InputError(f"lengths must be one or more numbers of at least 1, got {self.lengths}")
        if self.distant and self.part == "whole":
            raise InputError("--distant needs --part held-out: the other part is what replaces the distant text")
        if self.distant and not 1 <= self.recent < self.distant:
            raise InputError(f"recent {self.recent} must be at least 1 and less than distant {self.distant}")
        if self.out is not None:
            require_folder(self.out.parent)
            if self.out.is_dir():
                raise InputError(f"--out {self.out} is a folder; name a file, such as {self.out / 'evaluation.json'}")
            require_result(self.out, lambda found: found.keys() >= RESULT)

    def _text(self, trained_on: dict[str, Any] | None) -> SplitText:
        """Cut as it was cut for training: the held-out part must be what the model has not seen."""
        text = read_text([self.text], self.characters)
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
        settings = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items() if name != "out"}
        return {
            "settings": settings,
            "trained_on": trained_on,
            "same_text_as_in_training": trained_on and trained_on.get("sha256") == described["sha256"],
            "text": {"characters": len(text.whole), "sha256": described["sha256"], "part": len(scored)},
            "unseen": vocabulary.unseen(scored),
            "scored": (len(scored) - 1) // longest * longest,
        }

    def _announce(self, console: Console, found: dict[str, Any]) -> None:
        what = f"held-out part of {self.text}" if self.part == "held-out" else f"whole of {self.text}"
        say(
            console,
            f"{what}: {found['text']['part']:,} characters, {found['scored']:,} scored, "
            f"{found['unseen']:,} unseen in training",
        )
        trained_on = found["trained_on"] or {"name": None}
        same_name = trained_on["name"] == os.path.basename(os.path.abspath(self.text))
        if self.part == "held-out" and same_name and not found["same_text_as_in_training"]:
            say(
                console,
                f"note: the model was trained on {trained_on['training']:,} of {trained_on['characters']:,} characters "
                f"of {trained_on['name']!r}; this is another cut, so it may have seen what is held out here.",
            )

    def _measure(self, model: Transformer, ids: Tensor, other: Tensor | None) -> dict[str, Any]:
        limit = (len(ids) - 1) // max(self.lengths) * max(self.lengths)
        values = {str(n): finite_or_none(perplexity(model, ids, n, max_tokens=limit)) for n in self.lengths}
        found: dict[str, Any] = {"perplexity": values}
        if other is not None:
            found |= use_of_distant_text(model, ids, self.distant, elsewhere=other, near=self.recent)
        return found

    def _show(self, console: Console, found: dict[str, Any]) -> None:
        values = found["perplexity"]
        head = ["characters", *(f"{int(length):,}" for length in values)]
        print_table(console, "Perplexity by characters read", head, [["perplexity", *map(shown, values.values())]])
        if "distant" not in found:
            return
        positions, changed = found["by_position"], found["distant"]
        places = [f"{first:,} to {after - 1:,}" for first, after in pairwise(positions["edges"])]
        rows = [[place, shown(value)] for place, value in zip(places, positions["perplexity"], strict=True)]
        title = f"Perplexity by position in windows of {self.distant:,} characters"
        print_table(console, title, ["position", "perplexity"], rows)
        rows = [[condition, shown(value)] for condition, value in changed["perplexity"].items()]
        title = (
            f"Perplexity of the last {self.recent:,} characters or a little more of {changed['windows']:,} windows of "
            f"{self.distant:,}, by what stands before them"
        )
        print_table(console, title, ["text before", "perplexity"], rows)
