"""Saving and loading addresses: one safetensors file that carries its settings, and the same settings as JSON to read.

The model's own weights are saved by its own means. A model saved whole while attached to (``save_pretrained``, a
checkpoint of ``Trainer``) holds its addresses too, and :func:`load` finds them there.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from contentrope.config import differences
from contentrope.errors import CheckpointError, InputError
from contentrope.files import write_whole
from contentrope.hf.adapter import Adapter, adapter_of
from contentrope.hf.addresses import NAME
from contentrope.hf.layout import ADDRESSES, CONFIG, SETTINGS, settings_in
from contentrope.training.sharding import placed, whole
from contentrope.units import require_description
from contentrope.units.descriptions import as_far_as_said, upgraded

FORMAT = 2
"""1: units without a fingerprint, a rule of one's own by name alone, frequencies as precise as the model's dtype."""
RESTORED = ("gate", "competition")
"""Settings that a model takes over from the file; in all others they must agree."""
NUMBER = (int, float)
TYPES: dict[str, tuple[type, ...]] = {
    "hidden_size": (int,),
    "layers": (dict,),
    "turnings": (dict,),
    "units": (dict,),
    "max_length": (int,),
    "reader": (list,),
    "anchors": (list,),
    "learn_competition": (bool,),
    "competition": NUMBER,
    "gate": NUMBER,
}
UNSAID = {"competition": 0.0, "learn_competition": False, "reader": [], "anchors": []}
"""What the first files did not say."""
PRECISION = {1: 5e-3, FORMAT: 2e-5}
"""Of frequencies, relative. Those in files of the first format were measured from cosines in the model's dtype."""


class Saved(NamedTuple):
    """Addresses as they lie in a folder."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    format: int


def save(model: nn.Module, folder: str | Path) -> None:
    """Write the addresses of an attached model; each file is replaced whole or not at all.

    Where weights are spread over processes, every process must call it.
    """
    adapter, folder = adapter_of(model), Path(folder)
    require_description(adapter.segmenter.rule)
    settings = json.dumps({"format": FORMAT, **adapter.settings()}, indent=2)
    tensors = {name: whole(t).detach().cpu().contiguous() for name, t in adapter.trained.state_dict().items()}
    write_whole(folder / ADDRESSES, to_bytes(tensors, metadata={NAME: settings}))
    write_whole(folder / SETTINGS, (settings + "\n").encode())


def load(model: nn.Module, folder: str | Path) -> None:
    """Fill the addresses of an attached model, and set its gate and competition to what they were saved with.

    Refused, with the difference named, if they were made for another model, other units or another length.
    """
    adapter, folder = adapter_of(model), Path(folder)
    saved = read_addresses(folder)
    restored = {name: float(saved.settings[name]) for name in RESTORED}
    ours = {name: value for name, value in adapter.settings().items() if name not in RESTORED}
    theirs = {name: value for name, value in saved.settings.items() if name not in RESTORED}
    ours["units"] = as_far_as_said(ours["units"], theirs["units"])
    theirs["turnings"] = _as_precise(ours["turnings"], theirs["turnings"], PRECISION[saved.format])
    if found := differences(ours, theirs):
        raise CheckpointError(f"the addresses in {folder} do not fit: {'; '.join(found)}")
    if "parameters" not in theirs["units"]:
        warnings.warn(
            f"the units in {folder} were saved as the rule {theirs['units']['rule']} without its parameters, so nobody "
            "can tell whether they were these; save it again",
            stacklevel=2,
        )
    _fill(adapter, saved.tensors, folder)
    adapter.set(**restored)


def read_addresses(folder: Path) -> Saved:
    """Settings and weights of the addresses in a folder, every setting there and of its type."""
    if (folder / ADDRESSES).exists():
        where, (carried, tensors) = folder / ADDRESSES, _read(folder / ADDRESSES)
        _compare_with_json(folder, carried)
    else:
        where, tensors = folder / CONFIG, _among_weights(folder)
        carried = settings_in(folder / CONFIG).get(NAME, {})
    settings = dict(carried) if isinstance(carried, Mapping) else {}
    number = settings.pop("format", FORMAT if "rule" in _mapping(settings.get("units")) else 1)
    if type(number) is not int or number not in PRECISION:
        raise CheckpointError(f"{folder} has format {number}, this version reads {', '.join(map(str, PRECISION))}")
    settings = {**UNSAID, **settings}
    wrong = [f"{name} is {settings.get(name)!r}" for name, types in TYPES.items() if not _is(settings.get(name), types)]
    wrong += [f"{name} is {settings[name]}" for name in RESTORED if not wrong and not math.isfinite(settings[name])]
    if not wrong and not 0.0 <= settings["gate"] <= 1.0:
        wrong = [f"gate is {settings['gate']}"]
    if wrong:
        raise CheckpointError(f"the settings of the addresses in {where} are damaged: {'; '.join(wrong[:4])}")
    try:
        settings["units"] = upgraded(settings["units"])
    except InputError as error:
        raise CheckpointError(f"the settings of the addresses in {where} are damaged: {error}") from error
    return Saved(settings, tensors, number)


def _is(value: Any, types: tuple[type, ...]) -> bool:
    """JSON's true is no number; lists are of token ids or counts."""
    return type(value) in types and (not isinstance(value, list) or all(type(item) is int for item in value))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _read(path: Path) -> tuple[Any, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            settings = json.loads((file.metadata() or {}).get(NAME, "{}"))
            return settings, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); restore it from a copy") from error


def _compare_with_json(folder: Path, carried: Any) -> None:
    """An edited ``contentrope.json`` would be a wish that the addresses do not follow."""
    path = folder / SETTINGS
    if path.is_file() and (found := differences(_mapping(carried), settings_in(path))):
        raise CheckpointError(
            f"{path} is not what the addresses were saved with: {'; '.join(found[:4])}; undo the change, or delete it: "
            f"{ADDRESSES} has the settings too"
        )


def _among_weights(folder: Path) -> dict[str, Tensor]:
    """The addresses among the weights of a model that was saved while attached to."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            found.update(_addresses_in(path))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged ({error}); restore it from a copy") from error
    if not found:
        raise CheckpointError(f"no addresses in {folder}: neither {ADDRESSES} nor a model saved with {NAME!r} weights")
    return found


def _addresses_in(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            if name.startswith(f"{NAME}."):
                yield name.removeprefix(f"{NAME}."), file.get_tensor(name)


def _as_precise(ours: Mapping[str, Any], theirs: Mapping[str, Any], precision: float) -> dict[str, Any]:
    """``theirs`` with our frequencies where those saved are the same to this precision."""
    return {
        name: {**turning, "frequency": ours[name]["frequency"]}
        if name in ours and _mapping(turning) and _close(ours[name]["frequency"], turning.get("frequency"), precision)
        else turning
        for name, turning in theirs.items()
    }


def _close(ours: list[float], theirs: Any, precision: float) -> bool:
    if not isinstance(theirs, list) or len(theirs) != len(ours) or not all(type(x) in NUMBER for x in theirs):
        return False
    return all(math.isclose(a, b, rel_tol=precision) for a, b in zip(ours, theirs, strict=True))


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
