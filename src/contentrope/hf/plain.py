"""Ordinary Hugging Face checkpoints: loaded by folder or hub name, or refused in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contentrope.errors import BackendError, CheckpointError, InputError
from contentrope.hf.addresses import NAME
from contentrope.hf.layout import is_converted

NO_FAULT_OF_THE_FILES = (BackendError, CheckpointError, InputError, torch.OutOfMemoryError, MemoryError)


def require_transformers(*, peft: bool = False) -> None:
    try:
        import transformers  # noqa: F401

        if peft:
            import peft as _  # noqa: F401
    except ImportError as error:
        raise BackendError(f"Hugging Face models need {error.name}: pip install contentrope[hf]") from error


def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    with had_or_refused(name, "tokenizer"):
        return AutoTokenizer.from_pretrained(name)


def load_model(
    name: str,
    *,
    rope: dict[str, Any] | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: str | torch.device = "cpu",
) -> Any:
    """A causal language model; ``rope`` takes the place of some of its rotary settings."""
    # A LoRA adapter remembers where its model lies, and may be loaded from elsewhere.
    place = os.path.abspath(name) if os.path.isdir(name) else name
    config = config_of(place)
    if rope is not None:
        config.rope_parameters = {**config.rope_parameters, **rope}
    model, unknown = load_weights(place, config, dtype, device)
    if [name for name in unknown if name.startswith(f"{NAME}.")]:
        raise CheckpointError(f"{name} has addresses among its weights, and no settings of them; restore config.json")
    return model


def config_of(name: str) -> Any:
    from transformers import AutoConfig

    if is_converted(name):
        raise InputError(
            f"{name} holds a model with addresses, and a plain one is needed here; name the model it was made from, or "
            "load it with contentrope.hf.from_pretrained"
        )
    with had_or_refused(name):
        return AutoConfig.from_pretrained(name)


def load_weights(
    place: str, config: Any, dtype: torch.dtype | str, device: str | torch.device, variant: str | None = None
) -> tuple[Any, list[str]]:
    """A model of this configuration with the weights in ``place``, all of them; and what it has no place for."""
    from transformers import AutoModelForCausalLM

    refuse_pickle(Path(place), "model*.safetensors")
    with had_or_refused(place):
        # Only safetensors: a pickle can run code.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, config=config, dtype=dtype, variant=variant, use_safetensors=True, output_loading_info=True
        )
        model, found = loaded
        if missing := sorted(found["missing_keys"]):
            raise CheckpointError(f"{place} lacks {len(missing)} weights of its model, {missing[0]} among them")
        return model.to(device), sorted(found["unexpected_keys"])


def refuse_pickle(folder: Path, wanted: str) -> None:
    """Say of a folder that has no safetensors but a pickle why it is left alone."""
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles and not list(folder.glob(wanted)):
        raise CheckpointError(
            f"{folder / pickles[0]} is a pickle, which can run code; only safetensors is loaded: where you trust it, "
            "load it with transformers (or PEFT) and write it anew with save_pretrained"
        )


@contextmanager
def had_or_refused(name: str, what: str = "model") -> Iterator[None]:
    """Whatever loading raises becomes one sentence with a remedy; a missing hub must not look like a missing file.

    Damaged files end in errors of every kind, from safetensors' own to a RecursionError.
    """
    try:
        with quiet():
            yield
    except NO_FAULT_OF_THE_FILES:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        if os.path.isdir(name):
            raise CheckpointError(
                f"{name} holds no {what} that transformers can load ({reason}); restore its files from a copy"
            ) from error
        if os.path.isabs(name) or name.startswith(".") or name.count("/") > 1:
            raise InputError(f"there is no folder {name!r}; check the path") from error
        raise InputError(
            f"model {name!r} is no folder here, and the hub did not give it ({reason}); without a connection, "
            f"download it where there is one (hf download {name} --local-dir DIR) and pass that folder"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """transformers tells at length what it found, with bars of its own; what matters here is raised."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def key_heads(config: Any) -> int:
    """Key/value heads of a layer, by a model's configuration."""
    text = config.get_text_config()
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)


def require_embedded(ids: Tensor, config: Any, name: str) -> None:
    """Refuse token ids that the model has no embedding for: a tokenizer may know more than the model."""
    rows = config.get_text_config().vocab_size
    if ids.numel() and (largest := int(ids.max())) >= rows:
        raise InputError(
            f"the tokenizer of {name} gives token {largest}, the model has embeddings for {rows}: they do not belong "
            "together; call model.resize_token_embeddings(len(tokenizer)) and train the new ones, or take its own"
        )
