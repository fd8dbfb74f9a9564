"""What lies in a folder with a checkpoint. Asked of the files alone: no optional package is imported.

A converted model is written so that nothing but :func:`contentrope.hf.from_pretrained` loads it, as everything else
would leave out its addresses and compute another model in silence:

    config.json                     a model_type that transformers does not know; inside, the configuration of the model
                                    or of LoRA. There is no adapter_config.json, by which PEFT knows its adapters
    model.contentrope.safetensors   the weights, as a variant, so that they are not found by the class of the model;
                                    under LoRA their changes, adapter_model.safetensors
    contentrope.safetensors         the addresses and their settings; contentrope.json: the settings again, to read
    tokenizer.json, ...             for AutoTokenizer, as ever
    README.md                       how to load it
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contentrope.hf.addresses import NAME
from contentrope.results import read_json

SETTINGS, ADDRESSES = "contentrope.json", "contentrope.safetensors"
CONFIG, ADAPTER, CARD = "config.json", "adapter_config.json", "README.md"
FORMAT = 2
"""1: units without a fingerprint, a rule of one's own by name alone, frequencies as precise as the model's dtype."""
VARIANT = "contentrope"
"""Of the weights, in the names of their files."""
BASE = "base_model_name_or_path"
"""How PEFT names the model that it changes."""
CHANGED = "base_fingerprint"
"""Which weights those of LoRA change; folders of earlier versions do not say."""
MODEL_TYPE = "contentrope.hf.from_pretrained"
"""transformers refuses an unknown model type and names it: this one names what to call."""


def is_checkpoint(folder: str | Path) -> bool:
    """Whether a folder holds a Hugging Face checkpoint, plain or converted."""
    folder = Path(folder)
    return (folder / ADAPTER).exists() or "model_type" in settings_in(folder / CONFIG) or is_converted(folder)


def is_converted(folder: str | Path) -> bool:
    """Whether anything in a folder says that its model has addresses; those of earlier versions have no model type."""
    folder = Path(folder)
    if (folder / SETTINGS).exists() or (folder / ADDRESSES).exists():
        return True
    config = settings_in(folder / CONFIG)
    saved = settings_in(folder / ADAPTER).get("modules_to_save")
    return config.get("model_type") == MODEL_TYPE or NAME in config or (isinstance(saved, list) and NAME in saved)


def settings_in(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no file, or something else in it."""
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}
