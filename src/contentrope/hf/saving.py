"""Writing addresses, and whole converted models so that only ``from_pretrained`` loads them: see ``layout.py``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from contentrope.errors import InputError
from contentrope.files import write_folder, write_whole
from contentrope.hf import layout
from contentrope.hf.adapter import adapter_of
from contentrope.hf.addresses import NAME
from contentrope.hf.base import base_fingerprint
from contentrope.hf.card import Facts, card
from contentrope.hf.plain import quiet
from contentrope.results import write_json
from contentrope.sealed import sealed
from contentrope.training.distributed import whole
from contentrope.units import require_description


def save(model: nn.Module, folder: str | Path) -> None:
    """Write the addresses of an attached model; each file is replaced whole or not at all.

    Where weights are spread over processes, every process must call it.
    """
    adapter, folder = adapter_of(model), Path(folder)
    require_description(adapter.segmenter.rule)
    settings = {"format": layout.FORMAT, **adapter.settings()}
    tensors = {name: whole(t) for name, t in adapter.trained.state_dict().items()}
    write_whole(folder / layout.ADDRESSES, sealed(settings, tensors))
    write_whole(folder / layout.SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())


def save_pretrained(model: Any, folder: str | Path, tokenizer: Any = None, *, facts: Facts | None = None) -> None:
    """Write a model with addresses: its weights (under PEFT, their changes), addresses, tokenizer and a model card.

    The folder appears when it is complete; it may take the place of a converted model, and of nothing else.
    :func:`from_pretrained` loads it, and nothing else does. ``facts``: what the card says of its training.
    """
    folder = Path(folder)
    settings, base = adapter_of(model).settings(), _base_of(model, folder)
    made_from = (facts and facts.base) or base or getattr(model, "name_or_path", None) or None
    require_description(adapter_of(model).segmenter.rule)

    def write(place: Path) -> None:
        if base is None:
            # The addresses have a file of their own, which says what they belong to.
            tensors = {name: t for name, t in model.state_dict().items() if not name.startswith(f"{NAME}.")}
            model.save_pretrained(place, state_dict=tensors, variant=layout.VARIANT)
            inside = {"model": _taken(place / layout.CONFIG)}
            inside["model"].pop(NAME, None)
        else:
            _save_lora(model, place)
            lora = {**_taken(place / layout.ADAPTER), layout.BASE: base}
            inside = {"lora": lora, layout.CHANGED: base_fingerprint(model)}
        write_json(place / layout.CONFIG, {"model_type": layout.MODEL_TYPE, **inside})
        save(model, place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        text = card(settings, folder.name, made_from, lora=base is not None, facts=facts)
        (place / layout.CARD).write_text(text, encoding="utf-8")

    with quiet():
        write_folder(folder, write, layout.is_converted)


def _base_of(model: Any, folder: Path) -> str | None:
    """What a PEFT model changes; None of a whole model. Refuses what could not be loaded again."""
    if not hasattr(model, "save_pretrained"):
        raise InputError(f"{type(model).__name__} has no save_pretrained; pass the model inside of it")
    if not hasattr(model, "get_base_model"):
        if any(name.endswith(".base_layer") for name, _ in model.named_modules()):
            raise InputError(
                f"this {type(model).__name__} has PEFT layers in it; pass what get_peft_model returned, or merge them "
                "with merge_and_unload()"
            )
        return None
    if len(model.active_adapters) != 1:
        raise InputError(f"adapters {model.active_adapters} are active; choose one with set_adapter, or merge them")
    name = model.peft_config[model.active_adapters[0]].base_model_name_or_path
    if not name:
        raise InputError(
            "PEFT's changes are saved without the model they change, and this one was loaded from nowhere; save and "
            "load it before get_peft_model, or merge the changes with merge_and_unload()"
        )
    if not os.path.isdir(name):
        return str(name)
    if Path(name).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{folder} holds the model that these are changes to; choose another folder")
    return os.path.abspath(name)


def _save_lora(model: Any, place: Path) -> None:
    """Its active adapter. PEFT gives one that is not called "default" a folder of its own."""
    (active,) = model.active_adapters
    model.save_pretrained(place, selected_adapters=[active])
    if (place / active).is_dir():
        for path in (place / active).iterdir():
            os.replace(path, place / path.name)
        (place / active).rmdir()


def _taken(path: Path) -> dict[str, Any]:
    """A configuration, which is not left where it would be found."""
    found = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return dict(found)
