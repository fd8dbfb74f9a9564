"""A folder of text files, kept as documents of a store: what is new or has changed is computed, all else is left.

What a run has written it knows again by the document's metadata: where the text came from, and its SHA-256. A document
that others have added or edited has none, or another, and is never replaced or removed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from contentrope.store.document_files import NamedDocument
from contentrope.store.named import NamedDocuments
from contentrope.store.text_files import TextFile, digest_of_text

SOURCE, DIGEST = "source", "sha256"
"""Metadata of a document that was made of a file."""
MOST_AT_ONCE, MOST_CHARACTERS = 256, 2**18
"""Files that are computed together, so that units are written in few groups."""


@dataclass
class Plan:
    """What is to be done with each file."""

    new: list[TextFile] = field(default_factory=list)
    changed: list[TextFile] = field(default_factory=list)
    unchanged: list[TextFile] = field(default_factory=list)
    foreign: list[TextFile] = field(default_factory=list)
    """Their ids are of documents that others have added or edited."""
    missing: list[NamedDocument] = field(default_factory=list)
    """Documents of an earlier run whose files are gone."""

    @property
    def work(self) -> list[TextFile]:
        return [*self.new, *self.changed]


def plan(documents: NamedDocuments, files: Sequence[TextFile], folders: Iterable[str | Path] = ()) -> Plan:
    """``folders``: where files are looked for that an earlier run has found and that are there no more."""
    made, known = Plan(), documents.by_id
    for file in files:
        there = known.get(file.id)
        if there is None:
            made.new.append(file)
        elif there.text == file.text:
            (made.unchanged if documents.is_whole(there.key) else made.changed).append(file)
        else:
            (made.changed if is_ours(there) else made.foreign).append(file)
    below = tuple(f"{Path(folder).absolute()}/" for folder in folders if Path(folder).is_dir())
    for one in known.values():
        source = one.metadata.get(SOURCE, "")
        if is_ours(one) and source.startswith(below) and not Path(source).exists():
            made.missing.append(one)
    return made


def is_ours(document: NamedDocument) -> bool:
    """Whether a run has written it, and nobody has changed its text since."""
    return SOURCE in document.metadata and document.metadata.get(DIGEST) == digest_of_text(document.text)


def add_files(
    documents: NamedDocuments, files: Sequence[TextFile], progress: Callable[[int], object] = lambda characters: None
) -> int:
    """The tokens that were computed. Each batch is kept as it is done; what others have added meanwhile is left to
    them. ``progress`` is called with the characters done so far."""
    done = tokens = 0
    for batch in batches_of(files):
        size = sum(len(file.text) for file in batch)

        def within(computed: int, total: int, done: int = done, size: int = size) -> None:
            progress(done + size * computed // max(1, total))

        tokens += _add(documents, batch, within)
        done += size
        progress(done)
    return tokens


def _add(documents: NamedDocuments, batch: Sequence[TextFile], within: Callable[[int, int], None]) -> int:
    made, work = documents.compute_all([file.text for file in batch], within)
    documents.refresh()
    kept = []
    for file, one in zip(batch, made, strict=True):
        there = documents.by_id.get(file.id)
        if there is not None and (there.text == file.text or not is_ours(there)):
            continue
        metadata = {SOURCE: file.source, DIGEST: file.digest}
        one = replace(one, id=file.id, name=file.name, metadata=metadata)
        kept.append(one if there is None else replace(one, created=there.created))
    if kept:
        documents.keep(kept)
    return work.tokens


def remove_missing(documents: NamedDocuments, planned: Plan) -> list[str]:
    """Of those whose files are gone, the ones that nobody has edited since; their ids."""
    documents.refresh()
    ids = [one.id for one in planned.missing if one.id in documents.by_id and is_ours(documents.by_id[one.id])]
    for document in ids:
        documents.remove(document)
    return ids


def batches_of(files: Sequence[TextFile]) -> Iterator[list[TextFile]]:
    batch: list[TextFile] = []
    size = 0
    for file in files:
        if batch and (len(batch) == MOST_AT_ONCE or size + len(file.text) > MOST_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += len(file.text)
    if batch:
        yield batch
