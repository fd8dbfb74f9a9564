"""A group: units that were computed together, and documents that are made of units, in one safetensors file.

Of a unit it holds the token ids and the keys and values of all layers, as the store's precision has them. Its header
says which units and documents there are, each with its checksum, and has one itself. A group is written once and never
changed; its name is a hash of what it holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from safetensors.torch import save
from torch import Tensor

from contentrope.errors import CheckpointError
from contentrope.store.fingerprint import tensor_digest
from contentrope.store.places import Bytes, Part, Place

FOLDER = "units"
_CONTENTS, _CHECKSUM = "contentrope", "sha256"
_DTYPES = {
    "I8": torch.int8,
    "I32": torch.int32,
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class Piece(NamedTuple):
    """A unit as it is stored."""

    ids: Int[Tensor, "tokens"]
    states: tuple[Tensor, ...]
    """For each shape that layers have as many tensors as the store's precision needs."""

    def digest(self) -> str:
        return tensor_digest(self.ids, *self.states)

    @property
    def bytes(self) -> int:
        return sum(x.nbytes for x in (self.ids, *self.states))


class Where(NamedTuple):
    """Of a tensor in a file."""

    dtype: str
    shape: list[int]
    begin: int
    end: int

    def fits(self, size: int) -> bool:
        """Into a file of this size."""
        return self.end <= size and self.end - self.begin == math.prod(self.shape) * _DTYPES[self.dtype].itemsize


class Unit(NamedTuple):
    """A unit in a group: of how many tokens, its checksum, and where its tensors lie, the ids first."""

    tokens: int
    digest: str
    tensors: list[Where]

    @property
    def bytes(self) -> int:
        return sum(x.end - x.begin for x in self.tensors)


@dataclass(frozen=True)
class Group:
    """The header of a file."""

    size: int
    units: dict[str, Unit] = field(default_factory=dict)
    documents: dict[str, list[str]] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        return {"size": self.size, "units": self.units, "documents": self.documents}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Group:
        units = {
            key: Unit(tokens, digest, [Where(*where) for where in tensors])
            for key, (tokens, digest, tensors) in described["units"].items()
        }
        return cls(described["size"], units, described["documents"])


def write_group(
    place: Place,
    pieces: Mapping[str, Piece],
    documents: Mapping[str, list[str]],
    *,
    digests: Mapping[str, str] | None = None,
    over: bool = False,
) -> str:
    """The name of the file. One of that name is left as it is, unless it is to be written ``over``. ``digests``: those
    of the pieces, where they are known."""
    digests = digests or {key: piece.digest() for key, piece in pieces.items()}
    contents = {
        "units": {key: [len(piece.ids), digests[key]] for key, piece in sorted(pieces.items())},
        "documents": dict(sorted(documents.items())),
    }
    named = {"units": sorted(pieces), "documents": contents["documents"]}
    name = f"{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]}.safetensors"
    if over or name not in place.sizes(FOLDER):
        text = json.dumps(contents)
        tensors = {f"{key}.ids": piece.ids for key, piece in pieces.items()}
        tensors |= {f"{key}.{n}": x for key, piece in pieces.items() for n, x in enumerate(piece.states)}
        metadata = {_CONTENTS: text, _CHECKSUM: hashlib.sha256(text.encode()).hexdigest()}
        place.write(f"{FOLDER}/{name}", save(tensors, metadata=metadata))
    return name


def read_header(place: Place, name: str, size: int) -> Group:
    """What a file holds, without reading that."""
    path = f"{FOLDER}/{name}"
    try:
        (length,) = struct.unpack("<Q", _bytes(place, Part(path, 0, 8)))
        header = json.loads(_bytes(place, Part(path, 8, 8 + length)))
        carried = header.pop("__metadata__")
        if carried[_CHECKSUM] != hashlib.sha256(carried[_CONTENTS].encode()).hexdigest():
            raise ValueError("the checksum of its header is another one")
        contents = json.loads(carried[_CONTENTS])
        found = {
            key: Unit(tokens, digest, _tensors_of(key, header, 8 + length))
            for key, (tokens, digest) in contents["units"].items()
        }
        if not all(where.fits(size) for unit in found.values() for where in unit.tensors):
            raise ValueError("it is cut short, or its header is wrong")
        return Group(size, found, contents["documents"])
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, struct.error, OverflowError, RuntimeError, RecursionError) as error:
        raise CheckpointError(f"{place}/{path} is damaged ({error}); verify(remove=True) removes it") from error


def _tensors_of(key: str, header: Mapping[str, Any], data: int) -> list[Where]:
    """The ids, and what else there is."""
    names = [f"{key}.ids"]
    for n in count():
        if (name := f"{key}.{n}") not in header:
            break
        names.append(name)
    entries = [header[name] for name in names]
    offsets = [entry["data_offsets"] for entry in entries]
    return [
        Where(entry["dtype"], entry["shape"], data + begin, data + end)
        for entry, (begin, end) in zip(entries, offsets, strict=True)
    ]


def read_pieces(place: Place, wanted: Mapping[str, tuple[str, Unit]]) -> dict[str, Piece]:
    """Units by key; ``wanted`` says in which file they lie, and where."""
    parts = [
        Part(f"{FOLDER}/{name}", where.begin, where.end) for name, unit in wanted.values() for where in unit.tensors
    ]
    read = iter(place.parts(parts))
    found = {}
    for key, (_, unit) in wanted.items():
        ids, *states = (_tensor(next(read), where) for where in unit.tensors)
        found[key] = Piece(ids, tuple(states))
    return found


def _tensor(data: Bytes, where: Where) -> Tensor:
    return data.view(_DTYPES[where.dtype]).view(where.shape)


def _bytes(place: Place, part: Part) -> bytes:
    if part.end - part.begin > 1 << 30:
        raise ValueError("its header is too long")
    (found,) = place.parts([part])
    return found.numpy().tobytes()
