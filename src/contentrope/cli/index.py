"""``contentrope index``: a folder of text files, as documents of a store."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from tyro.conf import arg

from contentrope.cli.generate import checkpoint_named
from contentrope.cli.options import Device, chosen_device, one, require_positive, require_share, several
from contentrope.cli.progress import progress_display
from contentrope.cluster import require_ray
from contentrope.errors import InputError, quoted

MOST_NAMED = 10
"""Files that a message names."""


@dataclass(frozen=True)
class Index:
    """Add the text files of folders to a store, one document each; `contentrope serve` has them at once.

    Files that have not changed cost nothing, and changed ones replace their document. Example: contentrope index
    --model runs/smol --store runs/documents --text notes
    """

    model: Annotated[str, arg(metavar="MODEL_DIR")]
    """Folder of a converted model, as `contentrope finetune` writes it."""
    store: Annotated[str, arg(metavar="DIR")]
    """Folder of the store, or any fsspec address; made if it is not there."""
    text: Annotated[tuple[str, ...], several(str, "PATH")]
    """Folders of text files, or files. Hidden ones are left out."""
    pattern: Annotated[tuple[str, ...], several(str, "GLOB"), arg(help_behavior_hint="(default: all files)")] = ()
    """Which files of a folder, such as '*.md'."""
    prefix: Annotated[str, one(str, "TEXT"), arg(help_behavior_hint="(default: none)")] = ""
    """Put before the ids of documents, which are the files' paths below their folder."""
    remove_missing: bool = False
    """Remove documents that an earlier run made of files of these folders that are gone."""
    precision: Literal["model", "int8"] = "model"
    """Numbers the store keeps: the model's own, or 8-bit ones, which take less room and change answers a little."""
    workers: int = 1
    """Processes that compute; more than one run on Ray, on this machine or the cluster that RAY_ADDRESS names."""
    worker_gpus: Annotated[
        float | None, one(float, "FLOAT"), arg(help_behavior_hint="(default: 1 if it computes on one)")
    ] = None
    """GPUs of each worker."""
    device: Device = None
    """Where to compute."""

    def run(self) -> None:
        from contentrope.hf.plain import require_transformers

        require_transformers()
        require_positive(workers=self.workers)
        require_share(worker_gpus=self.worker_gpus)
        if self.workers > 1:
            require_ray("contentrope index --workers")
        if not self.text:
            raise InputError("text is empty; name folders or files")
        if not all(sign.isascii() and (sign.isalnum() or sign in "._:-") for sign in self.prefix) or (
            (self.prefix and not self.prefix[0].isalnum()) or len(self.prefix) > 64
        ):
            raise InputError(f"prefix is {quoted(self.prefix)}: up to 64 letters, digits and ._:-, a letter first")
        folder = checkpoint_named(self.model)
        if folder is None or not Path(self.model).is_dir():
            raise InputError(f"there is no model in {self.model!r}; name the folder of a converted one")
        self._index(folder, chosen_device(self.device))

    def _index(self, model: str, device: str) -> None:
        from contentrope.hf.layout import is_converted
        from contentrope.hf.loading import load_any
        from contentrope.store import NamedDocuments, UnitStore
        from contentrope.store.indexing import plan, remove_missing
        from contentrope.store.text_files import find_texts

        if not is_converted(model):
            raise InputError(f"{model} holds no model with addresses; convert it first: contentrope finetune")
        own = [Path(model)] if "://" in self.store else [Path(model), Path(self.store)]
        found = find_texts(self.text, patterns=self.pattern, prefix=self.prefix, without=own)
        _name("skipped, as they hold no text", [f"{path} ({why})" for path, why in found.skipped.items()])
        if not found.files:
            raise InputError(f"no text was found in {', '.join(self.text)}; name other folders, or another --pattern")
        loaded, tokenizer = load_any(model, device=device)
        documents = NamedDocuments(UnitStore(self.store, loaded, tokenizer, precision=self.precision))
        planned = plan(documents, found.files, self.text)
        _name("left as they are, as others have added or edited their documents", [x.source for x in planned.foreign])
        tokens = self._add(documents, planned.work, model, device)
        removed = ""
        if self.remove_missing:
            removed = f", {len(remove_missing(documents, planned))} removed"
        elif planned.missing:
            _name("kept, though their files are gone (see --remove-missing)", [one.id for one in planned.missing])
        documents.refresh()
        print(
            f"{len(planned.new)} documents added, {len(planned.changed)} changed, {len(planned.unchanged)} unchanged"
            f"{removed}; {tokens:,} tokens computed; the store has {len(documents.by_id)} documents"
        )

    def _add(self, documents: Any, files: list[Any], model: str, device: str) -> int:
        """The tokens that were computed."""
        from contentrope.store.indexing import add_files

        total = sum(len(file.text) for file in files)
        if not files:
            return 0
        with progress_display(Console(stderr=True)) as display:

            def show(characters: int) -> None:
                display.measured("index", characters, total, "characters")

            show(0)
            if self.workers == 1:
                return add_files(documents, files, show)
            return self._add_on_ray(files, model, device, show)

    def _add_on_ray(self, files: list[Any], model: str, device: str, show: Callable[[int], None]) -> int:
        from contentrope.store.workers import Opening, add_files_on_ray

        on_gpu = device.startswith("cuda")
        opening = Opening(
            str(Path(model).resolve()),
            self.store if "://" in self.store else str(Path(self.store).resolve()),
            self.precision,
            "cuda" if on_gpu else device,  # Ray chooses which
        )
        gpus = float(on_gpu) if self.worker_gpus is None else self.worker_gpus
        cpus = max(1, (os.cpu_count() or 1) // self.workers)
        done = tokens = 0
        batches = add_files_on_ray(opening, files, workers=self.workers, cpus=cpus, gpus=gpus)
        with contextlib.closing(batches):
            for characters, computed in batches:
                done, tokens = done + characters, tokens + computed
                show(done)
        return tokens


def _name(what: str, names: list[str]) -> None:
    if names:
        more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        print(f"{what}: {', '.join(names[:MOST_NAMED])}{more}", file=sys.stderr)
