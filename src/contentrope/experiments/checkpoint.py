"""Training checkpoints: tensors as safetensors, everything else as JSON, and no pickle.

Layout: ``<folder>/step-00000400/{tensors.safetensors, state.json}``. A step folder gets its name only when
both files are on disk, and its predecessor goes only after that, so there is always one whole checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn, optim

from contentrope.errors import CheckpointError, InputError
from contentrope.results import read_json, write_json

Tensors = dict[str, Shaped[Tensor, "..."]]

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
        return load_file(newest / _TENSORS), read_json(newest / _STATE)
    except (OSError, SafetensorError, InputError) as error:
        raise CheckpointError(f"checkpoint {newest} is damaged ({error}); delete it to start over") from error


def pack(model: nn.Module, optimizer: optim.Optimizer) -> Tensors:
    """Weights, buffers and optimizer moments under names that outlive the order of parameters."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in _trained(model):
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    # Cloned: safetensors refuses tensors that share memory, as tied weights do.
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}


def unpack(tensors: Tensors, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Put what :func:`pack` saved back in place."""
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        one_line = " ".join(str(error).split())
        raise CheckpointError(f"the checkpoint holds another model: {one_line}") from error
    states: dict[int, Tensors] = {}
    for place, (name, _) in enumerate(_trained(model)):
        prefix = f"optimizer.{name}."
        moments = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        if moments:  # a parameter that got no gradient has none
            states[place] = moments
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
