"""Training checkpoints: tensors as safetensors, everything else as JSON, and no pickle.

Layout: ``<folder>/step-00000400/{tensors.safetensors, state.json}``. A step folder gets its name only when both files
are on disk; the one before stays beside it, older ones go. ``state.json`` holds the SHA-256 of the tensors and of
itself, so a folder that was damaged is told from a whole one, and one of somebody else's is never deleted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn, optim

from contentrope.errors import CheckpointError, InputError
from contentrope.files import digest_of, flush, writing
from contentrope.results import json_bytes

Tensors = dict[str, Shaped[Tensor, "..."]]
Placed = Callable[[Tensor, Tensor], Tensor]

_TENSORS, _STATE, _WRITING, _FORMAT = "tensors.safetensors", "state.json", ".writing", 2
KEPT = 2
"""Checkpoints of a run: the last one, and the one before it."""


def save(folder: Path, step: int, tensors: Tensors, state: Mapping[str, Any]) -> Path:
    """Write the checkpoint of ``step``; the one before stays, earlier ones go."""
    target = place_of(folder, step)
    if not target.exists():
        place = folder / _WRITING
        _remove(place)
        try:
            with writing(target, sum(tensor.nbytes for tensor in tensors.values())):
                place.mkdir(parents=True)
                _write(place, tensors, state)
                os.replace(place, target)
        except BaseException:
            _remove(place)
            raise
    _remove_all(_steps(folder)[:-KEPT])
    return target


def place_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def latest(folder: Path) -> tuple[Tensors, dict[str, Any]] | None:
    """The tensors and state of the newest checkpoint, or None where there is none. A damaged one is never passed
    over in silence: the error says where training would go on without it."""
    steps = _steps(folder)
    if not steps:
        return None
    newest = steps[-1]
    try:
        state = _state_of(newest)
        tensors = _tensors_of(newest, state["tensors"])
        _require_counts(tensors, state["step"])
    except (OSError, SafetensorError, InputError) as error:
        rest = f"to continue from step {_step_of(steps[-2])}" if len(steps) > 1 else "to start over"
        raise CheckpointError(f"checkpoint {newest} is damaged ({error}); delete that folder {rest}") from error
    return tensors, state


def drop(folder: Path) -> None:
    """Delete the checkpoints in ``folder``, and ``folder`` if nothing else is in it."""
    _remove(folder / _WRITING)
    _remove_all(_steps(folder))
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def named_tensors(model: nn.Module, optimizer: optim.Optimizer) -> Tensors:
    """Trained weights, buffers and optimizer moments under names that outlive the order of parameters.

    Frozen weights are those the run began with: :func:`frozen` tells which, and a fingerprint of them is kept.
    """
    still = frozen(model)
    tensors = {f"model.{name}": value for name, value in model.state_dict().items() if name not in still}
    for name, parameter in _trained(model):
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def frozen(model: nn.Module) -> Tensors:
    """The weights that are not trained, tied ones under all of their names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() for name, parameter in named if not parameter.requires_grad}


def copied(value: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """A copy that can be saved: safetensors refuses tensors that share memory, as tied weights do."""
    return value.detach().cpu().clone().contiguous()


def unpack(tensors: Tensors, model: nn.Module, optimizer: optim.Optimizer, placed: Placed) -> None:
    """Put saved tensors back in place, if all that are needed are there and no others. ``placed`` lays a whole tensor
    out like the one it replaces."""
    _require_fitting(tensors, model)
    load_weights(model, _under("model.", tensors), placed)
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = {id(parameter): place for place, parameter in enumerate(held)}
    states: dict[int, Tensors] = {}
    for name, parameter in _trained(model):
        moments = _under(f"optimizer.{name}.", tensors)
        if moments:  # a parameter that got no gradient has none
            # Counters stay whole: only what has the parameter's shape is laid out like it.
            laid_out = {k: placed(t, parameter) if t.shape == parameter.shape else t for k, t in moments.items()}
            states[places[id(parameter)]] = laid_out
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], placed: Placed) -> None:
    """Into place; frozen weights that are not given stay as they are."""
    present = model.state_dict()
    given = {name: placed(t, present[name]) if name in present else t for name, t in weights.items()}
    model.load_state_dict({**{name: present[name] for name in frozen(model) if name in present}, **given})


def _require_fitting(tensors: Tensors, model: nn.Module) -> None:
    """What the model and AdamW need must be there in shape and dtype, and nothing besides."""
    still = frozen(model)
    expected = {f"model.{name}": _kind(t) for name, t in model.state_dict().items() if name not in still}
    for name, parameter in _trained(model):
        moments = {
            f"optimizer.{name}.exp_avg": _kind(parameter),
            f"optimizer.{name}.exp_avg_sq": _kind(parameter),
            f"optimizer.{name}.step": ((), torch.float32),
        }
        if moments.keys() & tensors.keys():  # a parameter that got no gradient has none
            expected |= moments
    found = {name: _kind(tensor) for name, tensor in tensors.items()}
    if unlike := [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]:
        words = [f"{name} is {_named(found.get(name))}, not {_named(expected.get(name))}" for name in unlike[:3]]
        more = f" and {len(unlike) - 3} more" if len(unlike) > 3 else ""
        raise CheckpointError(
            f"the checkpoint holds another model, or another optimizer's state ({'; '.join(words)}{more}); "
            "use the settings it was made with, or another folder"
        )


def _kind(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _named(kind: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "missing" if kind is None else f"{list(kind[0])} in {str(kind[1]).removeprefix('torch.')}"


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


# --- files -------------------------------------------------------------------------------------------------------


def _encoded(state: Mapping[str, Any]) -> bytes:
    """The one way a state is written, so that every byte of it counts. Its own digest is that without it."""
    digest = hashlib.sha256(json_bytes(state, _STATE)).hexdigest()
    return json_bytes({**state, "sha256": digest}, _STATE)


def _write(place: Path, tensors: Tensors, state: Mapping[str, Any]) -> None:
    save_file(tensors, place / _TENSORS)
    flush(place / _TENSORS)
    about = {"bytes": (place / _TENSORS).stat().st_size, "sha256": digest_of(place / _TENSORS)}
    (place / _STATE).write_bytes(_encoded({"format": _FORMAT, "tensors": about, **state}))
    flush(place / _STATE)


def _state_of(place: Path) -> dict[str, Any]:
    """The state in a step folder, if it is what was written there."""
    raw = (place / _STATE).read_bytes()
    try:
        state = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{_STATE} is truncated or not JSON") from error
    if not isinstance(state, dict) or "settings" not in state:
        raise InputError(f"{_STATE} holds no settings")
    if state.get("format") != _FORMAT:
        raise InputError(f"{_STATE} has format {state.get('format')}, this version reads {_FORMAT}")
    state.pop("sha256", None)
    if _encoded(state) != raw:
        raise InputError(f"{_STATE} is not what was written: its SHA-256 differs")
    for name, (meant, holds) in _FIELDS.items():
        if name not in state or not holds(state[name]):
            raise InputError(f"{name} in {_STATE} is {state.get(name)!r}, not {meant}")
    if state["step"] != _step_of(place):
        raise InputError(f"step in {_STATE} is {state['step']}, the folder is named {place.name}")
    return state


def _tensors_of(place: Path, about: Mapping[str, Any]) -> Tensors:
    size = (place / _TENSORS).stat().st_size
    if size != about["bytes"]:
        raise InputError(f"{_TENSORS} has {size} bytes, {about['bytes']} were written")
    if digest_of(place / _TENSORS) != about["sha256"]:
        raise InputError(f"{_TENSORS} is not what was written: its SHA-256 differs")
    return load_file(place / _TENSORS)


def _require_counts(tensors: Tensors, step: int) -> None:
    """AdamW counts the updates of every parameter."""
    for name, counted in tensors.items():
        if name.startswith("optimizer.") and name.endswith(".step"):
            value: Any = counted.tolist()
            if not _is_number(value) or value not in range(1, step + 1):
                raise InputError(f"{name} in {_TENSORS} is {value} after {step} steps")


def _is_number(value: Any, least: float = -math.inf) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= least


_COUNT = ("a whole number of at least 1", lambda value: type(value) is int and value >= 1)
_AMOUNT = ("a number of at least 0", lambda value: _is_number(value, least=0.0))
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "step": _COUNT,
    "loss": ("a finite number", _is_number),
    "norm": _AMOUNT,
    "tokens_per_step": _COUNT,
    "seconds": _AMOUNT,
    "settings": ("a JSON object", lambda value: type(value) is dict),
    "tensors": (
        "the size and SHA-256 of the tensors",
        lambda value: type(value) is dict and type(value.get("bytes")) is int and type(value.get("sha256")) is str,
    ),
}


def _steps(folder: Path) -> list[Path]:
    """The step folders, oldest first."""
    named = [place for place in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", place.name)]
    return sorted(named, key=_step_of)


def _step_of(place: Path) -> int:
    return int(place.name.removeprefix("step-"))


def _remove_all(places: list[Path]) -> None:
    """Delete checkpoints; what is not as it was written is left alone."""
    for place in places:
        with suppress(OSError, InputError):
            if (place / _TENSORS).stat().st_size == _state_of(place)["tensors"]["bytes"]:
                _remove(place)


def _remove(place: Path) -> None:
    """Delete the two files of a checkpoint and their folder, if nothing else is in it."""
    if place.is_symlink() or not place.is_dir():
        return
    # The state last: without it nobody could tell whose folder it is.
    for name in (_TENSORS, _STATE):
        (place / name).unlink(missing_ok=True)
    if not any(place.iterdir()):
        place.rmdir()
