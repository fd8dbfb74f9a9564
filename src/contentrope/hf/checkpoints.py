"""Converted checkpoints: models with addresses, loaded as they were saved, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from contentrope.errors import CheckpointError
from contentrope.files import write_folder
from contentrope.hf.addresses import NAME
from contentrope.hf.api import attach
from contentrope.hf.files import load, save
from contentrope.hf.layout import ADAPTER, SETTINGS
from contentrope.hf.plain import load_model, load_tokenizer, quiet, require_transformers
from contentrope.results import read_json


def save_converted(model: Any, tokenizer: Any, folder: Path) -> None:
    """A model with addresses: its weights (or, with LoRA, their changes), its addresses, its tokenizer."""

    def write(place: Path) -> None:
        if hasattr(model, "peft_config"):
            model.save_pretrained(place)
        else:
            # The addresses have a file of their own, which says what they belong to.
            weights = {name: t for name, t in model.state_dict().items() if not name.startswith(f"{NAME}.")}
            model.save_pretrained(place, state_dict=weights)
        save(model, place)
        tokenizer.save_pretrained(place)

    with quiet():
        write_folder(folder, write)


def load_any(name: str, *, device: str = "cpu", dtype: torch.dtype | str = "auto") -> tuple[Any, Any]:
    """Model and tokenizer of a checkpoint: a plain one, one with addresses, or LoRA with addresses."""
    folder = Path(name)
    tokenizer = load_tokenizer(name)
    if not (folder / SETTINGS).exists():
        return load_model(name, dtype=dtype, device=device).eval(), tokenizer
    lora = (folder / ADAPTER).exists()
    require_transformers(peft=lora)
    base = str(read_json(folder / ADAPTER)["base_model_name_or_path"]) if lora else name
    model = attach_as_saved(load_model(base, dtype=dtype, device=device), tokenizer, folder)
    return model.eval(), tokenizer


def attach_as_saved(model: Any, tokenizer: Any, folder: Path) -> Any:
    """Give ``model`` the addresses in ``folder``, with the units they were trained for."""
    saved = read_json(folder / SETTINGS)
    units = saved["units"]
    known = units.get("kind") or units.get("length") or units.get("terminators")
    if known is None:
        raise CheckpointError(f"{folder / SETTINGS} names a rule of its own for units; attach with it in Python")
    model = attach(
        model,
        tokenizer,
        units=known,
        marker=units.get("marker"),
        max_length=saved["max_length"],
        competition=saved.get("competition", 0.0),
        learn_competition=saved.get("learn_competition", False),
        anchors=saved.get("anchors", ()),
        reader=saved.get("reader", ()),
    )
    if (folder / ADAPTER).exists():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    load(model, folder)
    return model
