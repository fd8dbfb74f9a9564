"""Options that several commands have, and how their defaults are shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from contentrope.devices import best_device, require_device
from contentrope.errors import InputError, quoted


def one(kind: Callable[[str], Any], metavar: str, choices: tuple[str, ...] = ()) -> PrimitiveConstructorSpec[Any]:
    """How an option that may be left out reads its value; tyro's own way would offer None beside it."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(choices) + "}" if choices else metavar,
        instance_from_str=lambda words: kind(words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        choices=choices or None,
    )


def several(kind: Callable[[str], Any], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """The same for a list of values."""
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{metavar} [{metavar} ...]",
        instance_from_str=lambda words: tuple(map(kind, words)),
        is_instance=lambda value: True,
        str_from_instance=lambda value: list(map(str, value or ())),
    )


Marker = Annotated[str | None, one(str, "TEXT"), arg(help_behavior_hint="(default: none)")]
"""Text that ends a record, or a document."""
ALL = arg(help_behavior_hint="(default: all)")
NONE = arg(help_behavior_hint="(default: none)")
Device = Annotated[
    str | None,
    one(str, "{cpu,cuda,cuda:1,...}"),
    arg(help_behavior_hint="(default: cuda if there is one, else cpu)"),
]
Text = Annotated[str, arg(metavar="{shakespeare,stdlib,PATH}")]


def chosen_device(device: str | None) -> str:
    """The device asked for, or the best there is; refused if it cannot be used."""
    device = best_device() if device is None else device
    require_device(device)
    return device


def require_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be 0 or more and less than 2**63, got {seed}")


def require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}")


def require_share(**numbers: float | None) -> None:
    """Of cores or GPUs, for one process."""
    for name, number in numbers.items():
        if number is not None and (number < 0 or (number > 1 and number != int(number))):
            raise InputError(f"{name} must be a part of one or a whole number, got {number:g}")


def require_no_file(model: str) -> None:
    """A model is a folder or a name on the hub; transformers would read a file as its settings."""
    if os.path.exists(model) and not os.path.isdir(model):
        raise InputError(f"model {quoted(model)} is a file; name the folder of a model, or its name on the hub")


def require_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written to now, not after minutes of work; nothing is made yet."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not place.is_dir():
        raise InputError(f"nothing can be written to {folder}: {place} is not a folder; choose another")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"nothing can be written to {folder}: {place} is not writable; choose another")


def is_first_process() -> bool:
    """Of several processes that train one model together, the one that prints and writes."""
    return os.environ.get("RANK", "0") == "0"
