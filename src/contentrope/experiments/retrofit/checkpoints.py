"""Hugging Face checkpoints, with addresses and without: loaded by folder or hub name, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from contentrope.errors import BackendError, CheckpointError, InputError
from contentrope.files import write_folder
from contentrope.results import read_json

SETTINGS, ADAPTER = "contentrope.json", "adapter_config.json"


def require_transformers(*, peft: bool = False) -> None:
    try:
        import transformers  # noqa: F401

        if peft:
            import peft as _  # noqa: F401
    except ImportError as error:
        raise BackendError(f"Hugging Face models need {error.name}: pip install contentrope[hf]") from error


def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    with had_or_refused(name):
        return AutoTokenizer.from_pretrained(name)


def load_model(
    name: str, *, rope: dict[str, Any] | None = None, dtype: torch.dtype | str = torch.float32, device: str = "cpu"
) -> Any:
    """A causal language model; ``rope`` takes the place of some of its rotary settings."""
    from transformers import AutoConfig, AutoModelForCausalLM

    # A LoRA adapter remembers where its model lies, and may be loaded from elsewhere.
    place = os.path.abspath(name) if os.path.isdir(name) else name
    with had_or_refused(name):
        config = AutoConfig.from_pretrained(place)
        if rope is not None:
            config.rope_parameters = {**config.rope_parameters, **rope}
        model: Any = AutoModelForCausalLM.from_pretrained(place, config=config, dtype=dtype)
    return model.to(device)


def config_of(name: str) -> Any:
    from transformers import AutoConfig

    with had_or_refused(name):
        return AutoConfig.from_pretrained(name)


@contextmanager
def had_or_refused(name: str) -> Iterator[None]:
    """Whatever loading raises becomes one sentence with a remedy; a missing hub must not look like a missing file."""
    try:
        with quiet():
            yield
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if os.path.isdir(name):
            raise CheckpointError(f"{name} holds no model that transformers can load ({reason})") from error
        if os.path.isabs(name) or name.startswith(".") or name.count("/") > 1:
            raise InputError(f"there is no folder {name!r}; check the path") from error
        raise InputError(
            f"model {name!r} is no folder here, and the hub did not give it ({reason}); without a connection, "
            f"download it where there is one (hf download {name} --local-dir DIR) and pass that folder"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """transformers tells at length what it found, with bars of its own; what matters here is raised."""
    from transformers.utils import logging as told

    level, bars = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity_error()
    told.disable_progress_bar()
    try:
        yield
    finally:
        told.set_verbosity(level)
        if bars:
            told.enable_progress_bar()


def save_plain(model: Any, tokenizer: Any, folder: Path) -> None:
    """An ordinary checkpoint."""

    def write(place: Path) -> None:
        with quiet():
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)

    write_folder(folder, write)


def save_converted(model: Any, tokenizer: Any, folder: Path) -> None:
    """A model with addresses: its weights (or, with LoRA, their changes), its addresses, its tokenizer."""
    import contentrope.hf as chf
    from contentrope.hf.addresses import NAME

    def write(place: Path) -> None:
        with quiet():
            if hasattr(model, "peft_config"):
                model.save_pretrained(place)
            else:
                # The addresses have a file of their own, which says what they belong to.
                weights = {name: t for name, t in model.state_dict().items() if not name.startswith(f"{NAME}.")}
                model.save_pretrained(place, state_dict=weights)
            chf.save(model, place)
            tokenizer.save_pretrained(place)

    write_folder(folder, write)


def is_checkpoint(folder: str | Path) -> bool:
    """Whether a folder holds something for :func:`load_any`."""
    return (Path(folder) / ADAPTER).exists() or "model_type" in _config(Path(folder))


def key_heads(config: Any) -> int:
    """Key/value heads of a layer, by a model's configuration."""
    text = config.get_text_config()
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)


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
    import contentrope.hf as chf

    saved = read_json(folder / SETTINGS)
    units = saved["units"]
    known = units.get("kind") or units.get("length") or units.get("terminators")
    if known is None:
        raise CheckpointError(f"{folder / SETTINGS} names a rule of its own for units; attach with it in Python")
    model = chf.attach(
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
    chf.load(model, folder)
    return model


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    found = read_json(path) if path.exists() else {}
    return found if isinstance(found, dict) else {}
