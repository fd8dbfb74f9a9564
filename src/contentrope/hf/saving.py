"""Writing addresses, and whole converted models so that only ``from_pretrained`` loads them: see ``layout.py``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from contentrope.errors import InputError
from contentrope.files import write_folder, write_whole
from contentrope.hf import layout
from contentrope.hf.adapter import adapter_of
from contentrope.hf.addresses import NAME
from contentrope.hf.plain import quiet
from contentrope.results import write_json
from contentrope.sealed import sealed
from contentrope.training.distributed import whole
from contentrope.units import require_description

CARD_TEXT = """---
library_name: contentrope
tags: [contentrope]
---

# A model with content-based addresses

Load it with `contentrope.hf.from_pretrained`, and with nothing else:

```python
import contentrope.hf as chf
from transformers import AutoTokenizer

model = chf.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")
```

On the command line: `contentrope generate --model {folder} --prompt "Once"`. Needs `pip install contentrope[hf]`.

{contents}
`AutoModelForCausalLM`, `pipeline` and PEFT's classes know no addresses: without them this is another model. They refuse
the folder, as `config.json` has a model type of its own.

| setting | |
| --- | --- |
{rows}
"""
LORA = """The folder holds the addresses and the changes that LoRA made to `{base}`, which must be there too. If it lies
elsewhere: `chf.from_pretrained("{folder}", base="...")`.
"""
WHOLE = "The folder holds all weights and the addresses."
NAMED = {
    "units": "units",
    "max_length": "longest unit, in tokens",
    "window": "near window, in tokens",
    "gate": "positions: 0 local, 1 global",
    "competition": "competition",
    "learn_competition": "competition is learned",
    "reader": "reader",
}
"""Settings in the model card."""


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


def save_pretrained(model: Any, folder: str | Path, tokenizer: Any = None) -> None:
    """Write a model with addresses: its weights (under PEFT, their changes), addresses, tokenizer and a model card.

    The folder appears when it is complete; it may take the place of a converted model, and of nothing else.
    :func:`from_pretrained` loads it, and nothing else does.
    """
    folder = Path(folder)
    settings, base = adapter_of(model).settings(), _base_of(model, folder)
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
            inside = {"lora": {**_taken(place / layout.ADAPTER), layout.BASE: base}}
        write_json(place / layout.CONFIG, {"model_type": layout.MODEL_TYPE, **inside})
        save(model, place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        (place / layout.CARD).write_text(card(settings, folder.name, base), encoding="utf-8")

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


def card(settings: Mapping[str, Any], folder: str, base: str | None) -> str:
    """The model card of a converted model; ``base``: what LoRA changes, if it does.

    >>> "base" in card({"units": {}}, "mine", "the-base") and "| longest" in card({"max_length": 8}, "mine", None)
    True
    """
    rows = "\n".join(f"| {words} | `{settings[name]}` |" for name, words in NAMED.items() if name in settings)
    contents = WHOLE if base is None else LORA.format(base=base, folder=folder)
    return CARD_TEXT.format(folder=folder, contents=contents, rows=rows)
