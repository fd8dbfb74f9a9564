"""Weights in one safetensors file with the settings they belong to, and a checksum over both."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from contentrope.errors import CheckpointError

Tensors = dict[str, Shaped[Tensor, "..."]]

AT_ONCE = 8
"""Tensors that a fingerprint holds in memory, and threads that read them."""
_SETTINGS, _CHECKSUM = "contentrope", "sha256"


class Sealed(NamedTuple):
    settings: Any
    """As JSON has them; the reader checks their types."""
    tensors: Tensors
    checked: bool
    """Whether the file had a checksum, which was right. Those of version 0.1 have none."""


def sealed(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a file with these settings and tensors."""
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(settings, indent=2)
    return to_bytes(held, metadata={_SETTINGS: text, _CHECKSUM: _checksum(text, held)})


def unseal(path: Path) -> Sealed:
    """The settings and tensors of a file made by :func:`sealed`; refused if a bit of it has changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "weights.safetensors")
    ...     _ = path.write_bytes(sealed({"gate": 1.0}, {"w": torch.ones(2)}))
    ...     unseal(path).settings
    {'gate': 1.0}
    """
    try:
        with safe_open(path, framework="pt") as file:
            carried = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = carried.get(_SETTINGS, "{}")
        settings = json.loads(text)
    except FileNotFoundError:
        raise
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); restore it from a copy") from error
    if _CHECKSUM in carried and carried[_CHECKSUM] != _checksum(text, tensors):
        raise CheckpointError(f"{path} is damaged (its checksum is another one); restore it from a copy")
    return Sealed(settings, tensors, _CHECKSUM in carried)


def _checksum(settings: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(settings.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{_heading(name, tensor)}\n".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over tensors and their names, in any order. A billion parameters take a second of a few cores.

    >>> fingerprint({"w": torch.zeros(2)}.items()) == fingerprint({"w": torch.zeros(3)}.items())
    False
    """
    digests, pending = [], deque[Future[str]]()
    with ThreadPoolExecutor(AT_ONCE) as threads:  # hashlib lets other threads run
        for name, tensor in tensors:
            # On the CPU few at a time, as there may be more of them than memory.
            pending.append(threads.submit(_digest_of, name, tensor.detach().cpu().contiguous()))
            if len(pending) > AT_ONCE:
                digests.append(pending.popleft().result())
        digests += [last.result() for last in pending]
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()


def _digest_of(name: str, tensor: Tensor) -> str:
    return f"{_heading(name, tensor)} {hashlib.sha256(_bytes_of(tensor)).hexdigest()}"


def _heading(name: str, tensor: Tensor) -> str:
    return f"{name} {tensor.dtype} {tuple(tensor.shape)}"


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
