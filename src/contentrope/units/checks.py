"""Input checks shared by the package: shapes and dtypes only, so none of them waits for a device."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from contentrope.errors import InputError

# Narrower integers cannot index a table in torch, and uint8 would be read as a mask.
_ID_DTYPES = (torch.int64, torch.int32)
_LARGEST_ID = 2**31 - 1


def check_integers(name: str, values: Tensor) -> None:
    if values.dim() != 2:
        found = f"{name} has shape {tuple(values.shape)}"
        raise InputError(f"{found}: pass (batch, seq), e.g. {name}[None] for one row")
    if values.dtype not in _ID_DTYPES:
        raise InputError(f"{name} has dtype {values.dtype}: pass int64 or int32, e.g. {name}.long()")


def check_mask(name: str, mask: Tensor, ids: Tensor) -> None:
    if mask.shape != ids.shape:
        raise InputError(
            f"{name} has shape {tuple(mask.shape)}, the tokens {tuple(ids.shape)}: pass one value per token"
        )
    if mask.dtype != torch.bool:
        raise InputError(f"{name} has dtype {mask.dtype}: pass a bool mask, e.g. {name}.bool()")


def check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}: pass an int of at least 1")


def fingerprint(*tables: Tensor) -> str:
    """The same for the same shapes and numbers, whatever their device.

    >>> fingerprint(torch.tensor([True])) == fingerprint(torch.tensor([False]))
    False
    """
    digest = hashlib.sha256()
    for table in tables:
        digest.update(str(tuple(table.shape)).encode())
        digest.update(table.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def token_ids(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """The distinct ids, sorted.

    >>> token_ids("terminators", [10, 2, 10])
    (2, 10)
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {values!r}: pass a set of token ids, e.g. {{10}}")
    distinct = set(values)
    for value in distinct:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_ID:
            raise InputError(f"{name} contains {value!r}: token ids are ints from 0 to {_LARGEST_ID}")
    return tuple(sorted(distinct))
