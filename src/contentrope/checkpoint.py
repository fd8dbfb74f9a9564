"""Saving and loading a model: one safetensors file that carries its settings, and the same settings as JSON to read.

Weights and settings travel together, so a model cannot be loaded under settings it was not trained with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from contentrope.config import ModelConfig, differences
from contentrope.errors import CheckpointError, InputError
from contentrope.files import write_whole
from contentrope.model import Transformer

WEIGHTS, SETTINGS, FORMAT = "model.safetensors", "config.json", 1


def save(model: Transformer, folder: str | Path) -> None:
    """Write ``model.safetensors`` and ``config.json``; each is replaced whole or not at all.

    >>> import tempfile
    >>> model = Transformer(ModelConfig(vocab_size=9, dim=16, layers=1, heads=2, terminators=(0,)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, folder)
    ...     same = load(folder)
    >>> same.config == model.config
    True
    """
    folder = Path(folder)
    settings = {"format": FORMAT, "model": model.config.to_dict()}
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    write_whole(folder / WEIGHTS, to_bytes(tensors, metadata={"contentrope": json.dumps(settings)}))
    try:
        write_whole(folder / SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())
    except BaseException:
        # The weights carry their settings: rather no JSON to read than that of the model they replaced.
        (folder / SETTINGS).unlink(missing_ok=True)
        raise


def load(folder: str | Path, *, device: str | torch.device = "cpu", backend: str = "auto") -> Transformer:
    """The model saved in ``folder``, in the dtype it was saved in."""
    settings, tensors = _read(Path(folder))
    model = Transformer(_config_of(settings, tensors, Path(folder)), backend=backend)
    _fill(model, tensors, Path(folder))
    return model.to(device)


def load_into(model: Transformer, folder: str | Path) -> None:
    """Fill an existing model; refused, with the difference named, if it was made with other settings."""
    settings, tensors = _read(Path(folder))
    theirs = settings.get("model")
    if not isinstance(theirs, dict):
        raise CheckpointError(f"{Path(folder) / WEIGHTS} has settings this version cannot use: model is {theirs!r}")
    if found := differences(model.config.to_dict(), theirs):
        raise CheckpointError(f"{folder} holds a model with other settings: {'; '.join(found)}")
    _fill(model, tensors, Path(folder))


def _config_of(settings: dict[str, Any], tensors: dict[str, torch.Tensor], folder: Path) -> ModelConfig:
    """The settings, once it is known that a model can be made of them and that the tensors are its own."""
    try:
        config = ModelConfig.from_dict(settings["model"])
        if config.layers > len(tensors):
            raise InputError(f"{config.layers} layers, and {len(tensors)} tensors")
        with torch.device("meta"):  # whatever sizes they name, no memory is taken
            model = Transformer(config)
    except Exception as error:  # settings of a wrong kind end in errors of every kind
        reason = next(iter(str(error).splitlines()), "")
        raise CheckpointError(
            f"{folder / WEIGHTS} has settings this version cannot use: {reason} ({type(error).__name__})"
        ) from error
    _require_fit(model, tensors, folder)
    return config


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            carried = json.loads((file.metadata() or {}).get("contentrope", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"no {WEIGHTS} in {folder}: not a saved model, or not finished") from None
    except (SafetensorError, json.JSONDecodeError, OSError, RecursionError) as error:
        raise CheckpointError(f"{folder / WEIGHTS} is damaged ({error}); restore it from a copy") from error
    found = carried.get("format") if isinstance(carried, dict) else None
    if found != FORMAT:
        raise CheckpointError(f"{folder / WEIGHTS} has format {found}, this version reads {FORMAT}")
    _compare_with_json(folder, carried)
    return carried, tensors


def _compare_with_json(folder: Path, carried: dict[str, Any]) -> None:
    """An edited ``config.json`` would be a wish the weights do not follow."""
    try:
        written = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        if not isinstance(written, dict):
            raise ValueError(f"holds {type(written).__name__}, not settings")
    except FileNotFoundError:
        return
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are ValueErrors too
        raise CheckpointError(f"{folder / SETTINGS} is damaged ({error}); delete it to load from {WEIGHTS}") from error
    found = differences(carried, written)
    if found:
        raise CheckpointError(
            f"{folder / SETTINGS} is not what the weights were saved with: {'; '.join(found)}; "
            f"undo the change, or delete it to load from {WEIGHTS}"
        )


def _fill(model: Transformer, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    _require_fit(model, tensors, folder)
    # In place, so that an optimizer keeps its parameters, but each in the dtype it was saved in. A copy, as the
    # tensors read are views of the file.
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = tensors[name].to(tensor.device, copy=True)


def _require_fit(model: Transformer, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    if expected != found:
        unequal = sorted(n for n in {*expected, *found} if expected.get(n) != found.get(n))
        named = ", ".join(f"{n} ({expected.get(n)} here, {found.get(n)} in the file)" for n in unequal[:4])
        raise CheckpointError(f"{folder} does not fit the model in {len(unequal)} tensors: {named}")
    whole = [f"{name} has dtype {t.dtype}" for name, t in tensors.items() if not t.is_floating_point()]
    if whole:
        raise CheckpointError(f"{folder / WEIGHTS} is damaged ({', '.join(whole[:4])}); restore it from a copy")
