"""Saving and loading addresses: one safetensors file that carries its settings, and the same settings as JSON to read.

The model's own weights are saved by its own means. A model saved whole while attached to (``save_pretrained``, a
checkpoint of ``Trainer``) holds its addresses too, and :func:`load` finds them there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from contentrope.config import differences
from contentrope.errors import CheckpointError
from contentrope.files import write_whole
from contentrope.hf.adapter import Adapter, adapter_of
from contentrope.hf.addresses import NAME
from contentrope.training.sharding import placed, whole

WEIGHTS, SETTINGS, FORMAT = "contentrope.safetensors", "contentrope.json", 1
RESTORED = ("gate", "competition")
"""Settings that a model takes over from the file; in all others they must agree."""


def save(model: nn.Module, folder: str | Path) -> None:
    """Write the addresses of an attached model; each file is replaced whole or not at all.

    Where weights are spread over processes, every process must call it.
    """
    adapter, folder = adapter_of(model), Path(folder)
    settings = json.dumps({"format": FORMAT, **adapter.settings()}, indent=2)
    tensors = {name: whole(t).detach().cpu().contiguous() for name, t in adapter.trained.state_dict().items()}
    write_whole(folder / WEIGHTS, to_bytes(tensors, metadata={NAME: settings}))
    write_whole(folder / SETTINGS, (settings + "\n").encode())


def load(model: nn.Module, folder: str | Path) -> None:
    """Fill the addresses of an attached model, and set its gate and competition to what they were saved with.

    Refused, with the difference named, if they were made for another model, other units or another length.
    """
    adapter, folder = adapter_of(model), Path(folder)
    settings, tensors = _read(folder) if (folder / WEIGHTS).exists() else _read_whole_model(folder)
    if settings.get("format", FORMAT) != FORMAT:
        raise CheckpointError(f"{folder} has format {settings['format']}, this version reads {FORMAT}")
    settings = {"competition": 0.0, "learn_competition": False, "reader": [], "anchors": [], **settings}
    restored = {name: settings.pop(name, None) for name in RESTORED}
    ours = {name: value for name, value in adapter.settings().items() if name not in RESTORED}
    found = differences({"format": FORMAT, **ours}, {"format": FORMAT, **settings})
    found += [f"{name} is {value!r}" for name, value in restored.items() if not isinstance(value, float)]
    if found:
        raise CheckpointError(f"the addresses in {folder} do not fit: {'; '.join(found)}")
    _fill(adapter, tensors, folder)
    adapter.set(**restored)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            settings = json.loads((file.metadata() or {}).get(NAME, "{}"))
            return settings, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise CheckpointError(f"{folder / WEIGHTS} is damaged ({error}); restore it from a copy") from error


def _read_whole_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The addresses among the weights of a model that was saved while attached to."""
    tensors = dict(_addresses_in(folder))
    if not tensors:
        raise CheckpointError(f"no addresses in {folder}: neither {WEIGHTS} nor a model saved with {NAME!r} weights")
    settings = json.loads((folder / "config.json").read_text()).get(NAME, {})
    return settings, tensors


def _addresses_in(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if name.startswith(f"{NAME}."):
                    yield name.removeprefix(f"{NAME}."), file.get_tensor(name)


def _fill(adapter: Adapter, tensors: dict[str, Tensor], folder: Path) -> None:
    ours = adapter.trained.state_dict()
    unequal = sorted(
        name for name in {*ours, *tensors} if name not in ours or name not in tensors
        or ours[name].shape != tensors[name].shape
    )  # fmt: skip
    broken = sorted(name for name, t in tensors.items() if not bool(torch.isfinite(t).all()))
    if unequal or broken:
        raise CheckpointError(f"the addresses in {folder} are damaged: {', '.join(unequal or broken)}")
    adapter.trained.load_state_dict({name: placed(t, ours[name]) for name, t in tensors.items()})
    adapter.missing = False
