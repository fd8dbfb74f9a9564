"""Indexing by several processes: Ray Data hands out the files, and each worker adds its own to the shared store."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from contentrope.cluster import connected
from contentrope.errors import BackendError
from contentrope.store.text_files import TextFile

BATCH = 16
"""Files that a worker gets at a time."""


class Opening(NamedTuple):
    """What a worker opens."""

    model: str
    store: str
    precision: str
    device: str


class Worker:
    """Ray Data makes one in each process, and calls it with batches of files."""

    def __init__(self, opening: Opening) -> None:
        from contentrope.hf.loading import load_any
        from contentrope.store import NamedDocuments, UnitStore

        model, tokenizer = load_any(opening.model, device=opening.device)
        self.documents = NamedDocuments(UnitStore(opening.store, model, tokenizer, precision=opening.precision))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        from contentrope.store.indexing import add_files

        files = [TextFile(*map(str, row)) for row in zip(*(batch[name] for name in TextFile._fields), strict=True)]
        tokens = add_files(self.documents, files)
        return {"files": [len(files)], "characters": [sum(len(file.text) for file in files)], "tokens": [tokens]}


def add_files_on_ray(
    opening: Opening, files: Sequence[TextFile], *, workers: int, cpus: float, gpus: float
) -> Generator[tuple[int, int], None, None]:
    """Characters and tokens of every batch that is done; to be closed by who stops early. ``cpus`` and ``gpus`` are
    those of each worker."""
    with connected(workers * cpus + 1, workers * gpus):
        import ray
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)  # its import has set another
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [file._asdict() for file in files]
        made = ray.data.from_items(rows, override_num_blocks=max(1, -(-len(rows) // BATCH))).map_batches(
            Worker,
            fn_constructor_args=(opening,),
            batch_size=BATCH,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        try:
            for row in made.iter_rows():
                yield int(row["characters"]), int(row["tokens"])
        except ray.exceptions.RayError as error:
            reason: BaseException = getattr(error, "cause", None) or error
            while reason.__cause__ is not None:
                reason = reason.__cause__
            raise BackendError(f"a worker failed: {reason}") from error
