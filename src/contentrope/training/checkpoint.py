"""Training checkpoints: tensors as safetensors, everything else as JSON, and no pickle.

Layout: ``<folder>/step-00000400/{tensors.safetensors, state.json}``. A step folder gets its name only when
both files are on disk, and its predecessor goes only after that, so there is always one whole checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn, optim

from contentrope.errors import CheckpointError, InputError
from contentrope.results import read_json, write_json

Tensors = dict[str, Shaped[Tensor, "..."]]
Placed = Callable[[Tensor, Tensor], Tensor]

_TENSORS, _STATE = "tensors.safetensors", "state.json"


def save(folder: Path, step: int, tensors: Tensors, state: Mapping[str, Any]) -> Path:
    """Write the checkpoint of ``step`` and drop the earlier ones."""
    target = folder / f"step-{step:08d}"
    if not target.exists():
        writing = folder / ".writing"
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        save_file(tensors, writing / _TENSORS)
        _flush(writing / _TENSORS)
        write_json(writing / _STATE, state)
        os.replace(writing, target)
    for earlier in _steps(folder):
        if earlier != target:
            shutil.rmtree(earlier)
    return target


def latest(folder: Path) -> tuple[Tensors, dict[str, Any]] | None:
    """The tensors and state of the newest checkpoint, or None where there is none."""
    steps = _steps(folder)
    if not steps:
        return None
    newest = steps[-1]
    try:
        tensors, state = load_file(newest / _TENSORS), read_json(newest / _STATE)
        if not isinstance(state, dict) or "settings" not in state:
            raise InputError(f"{_STATE} holds no settings")
    except (OSError, SafetensorError, InputError) as error:
        raise CheckpointError(f"checkpoint {newest} is damaged ({error}); delete it to start over") from error
    return tensors, state


def named_tensors(model: nn.Module, optimizer: optim.Optimizer) -> Tensors:
    """Weights, buffers and optimizer moments under names that outlive the order of parameters."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in _trained(model):
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def copied(value: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """As it can be saved: safetensors refuses tensors that share memory, as tied weights do."""
    return value.detach().cpu().clone().contiguous()


def unpack(tensors: Tensors, model: nn.Module, optimizer: optim.Optimizer, placed: Placed = lambda t, like: t) -> None:
    """Put saved tensors back in place. ``placed`` lays a whole tensor out like the one it replaces."""
    try:
        load_weights(model, _under("model.", tensors), placed)
    except RuntimeError as error:
        one_line = " ".join(str(error).split())
        raise CheckpointError(f"the checkpoint holds another model: {one_line}") from error
    states: dict[int, Tensors] = {}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = {id(parameter): place for place, parameter in enumerate(held)}
    for name, parameter in _trained(model):
        place = places[id(parameter)]
        moments = _under(f"optimizer.{name}.", tensors)
        if moments:  # a parameter that got no gradient has none
            # Counters stay whole: only what has the parameter's shape is laid out like it.
            states[place] = {k: placed(t, parameter) if t.shape == parameter.shape else t for k, t in moments.items()}
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], placed: Placed) -> None:
    present = model.state_dict()
    model.load_state_dict({name: placed(t, present[name]) if name in present else t for name, t in weights.items()})


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
