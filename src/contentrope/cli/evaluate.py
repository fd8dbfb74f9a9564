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
from contentrope.cli.texts import Encoded, encoded, seen_in_training, split, text_named
from contentrope.corpora import CharVocabulary, fingerprint
from contentrope.errors import InputError
from contentrope.experiments.evaluation import perplexity, shown
from contentrope.experiments.growth.measure import use_of_distant_text
from contentrope.experiments.saved import load_text_model, training_text_of
from contentrope.experiments.suite import finite_or_none, seeded
from contentrope.model import Transformer
from contentrope.outputs import require_result
from contentrope.results import environment, write_json

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
        text = self._text()
        training, held_out = split(text)
        scored = encoded(held_out if self.part == "held-out" else text, vocabulary)
        found = self._describe(text, scored, model)
        self._announce(console, found)
        with seeded(self.seed):
            found |= self._measure(model, vocabulary, scored.ids, training)
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

    def _text(self) -> str:
        """Cut as it was cut for training: the held-out part must be what the model has not seen."""
        text, trained_on = text_named(self.text, self.characters), training_text_of(self.model)
        if self.characters is None and trained_on is not None and self._has_name_of(trained_on):
            return text[: trained_on["characters"]]
        return text

    def _has_name_of(self, trained_on: dict[str, Any]) -> bool:
        return trained_on["name"] == os.path.basename(os.path.abspath(self.text))

    def _describe(self, text: str, scored: Encoded, model: Transformer) -> dict[str, Any]:
        longest = max(self.lengths)
        if len(scored.ids) <= max(longest, self.distant):
            raise InputError(
                f"windows of {max(longest, self.distant)} characters do not fit: the text leaves "
                f"{len(scored.ids) - 1} to score; take a longer text, or shorter lengths"
            )
        settings = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items() if name != "out"}
        trained_on = training_text_of(self.model)
        return {
            "settings": settings,
            "model": model.config.to_dict(),
            "trained_on": trained_on,
            "same_text_as_in_training": seen_in_training(text, trained_on),
            "text": {"characters": len(text), "sha256": fingerprint(text), "part": len(scored.ids)},
            "unseen": scored.unseen,
            "scored": (len(scored.ids) - 1) // longest * longest,
        }

    def _announce(self, console: Console, found: dict[str, Any]) -> None:
        what = f"held-out part of {self.text}" if self.part == "held-out" else f"whole of {self.text}"
        say(
            console,
            f"{what}: {found['text']['part']:,} characters, {found['scored']:,} scored, "
            f"{found['unseen']:,} unseen in training",
        )
        trained_on = found["trained_on"]
        otherwise = trained_on is not None and not found["same_text_as_in_training"] and self._has_name_of(trained_on)
        if self.part == "held-out" and otherwise:
            say(
                console,
                f"note: the model was trained on {trained_on['training']:,} of {trained_on['characters']:,} characters "
                f"of {trained_on['name']!r}; this is another cut, so it may have seen what is held out here.",
            )

    def _measure(self, model: Transformer, vocabulary: CharVocabulary, ids: Tensor, training: str) -> dict[str, Any]:
        limit = (len(ids) - 1) // max(self.lengths) * max(self.lengths)
        values = {str(n): finite_or_none(perplexity(model, ids, n, max_tokens=limit)) for n in self.lengths}
        if not self.distant:
            return {"perplexity": values}
        other = encoded(training, vocabulary).ids
        return {
            "perplexity": values,
            **use_of_distant_text(model, ids, self.distant, elsewhere=other, near=self.recent),
        }

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
