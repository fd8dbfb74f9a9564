"""Converted checkpoints: models with addresses, loaded as they were saved, written whole or not at all.

What lies where, and why: ``layout.py``.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from contentrope.errors import CheckpointError, InputError
from contentrope.hf.addresses import NAME
from contentrope.hf.api import attach
from contentrope.hf.files import load, read_addresses
from contentrope.hf.layout import ADAPTER, BASE, CONFIG, MODEL_TYPE, VARIANT, is_converted, settings_in
from contentrope.hf.plain import (
    had_or_refused,
    load_model,
    load_tokenizer,
    load_weights,
    refuse_pickle,
    require_transformers,
)
from contentrope.hf.units import texts_of
from contentrope.units import Rule, rule_described

LORA_WEIGHTS = "adapter_model.safetensors"


def from_pretrained(
    folder: str | Path,
    *,
    tokenizer: Any = None,
    units: Rule | None = None,
    base: str | Path | None = None,
    dtype: torch.dtype | str = "auto",
    device: str | torch.device = "cpu",
) -> Any:
    """The converted model in ``folder``, attached as it was saved and in evaluation mode: the one way to load it.

    Units, positions, competition, anchors and readers are those it was saved with. Where units are found in text, the
    tokenizer is the one in the folder, or ``tokenizer``. ``units``: the rule, where it is one of your own. ``base``:
    where the model that LoRA changes lies now. ``dtype``: of the weights; "auto": the one they were saved in.

    >>> import tempfile, transformers
    >>> import contentrope.hf as chf
    >>> sizes = dict(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    >>> model = chf.attach(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval(), units={0})
    >>> ids = torch.tensor([[5, 6, 0, 7, 8]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     chf.save_pretrained(model, folder + "/converted")
    ...     same = chf.from_pretrained(folder + "/converted")
    >>> torch.equal(same(ids).logits, model(ids).logits)
    True
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r}; download it first (hf download NAME --local-dir DIR)")
    if not is_converted(folder):
        raise InputError(f"{folder} holds no model with addresses; load it as usual and give it some with attach")
    parts, settings = _parts_of(folder), read_addresses(folder).settings
    require_transformers(peft=parts.lora is not None)
    model = _plain_part(parts, base, dtype, device)
    rule = units
    try:
        if rule is None:
            rows = len(model.get_input_embeddings().weight)
            rule = rule_described(settings["units"], lambda: texts_of(tokenizer or _tokenizer_in(folder), rows))
        names = ("max_length", "competition", "learn_competition", "anchors", "reader")
        model = attach(model, units=rule, positions=settings["gate"], **{name: settings[name] for name in names})
    except InputError as error:
        raise CheckpointError(f"the model in {folder} cannot be given its addresses: {error}") from error
    if parts.lora is not None:
        model = _with_lora(model, parts, str(device))
    load(model, folder)
    return model.eval()


def load_any(name: str, *, device: str = "cpu", dtype: torch.dtype | str = "auto") -> tuple[Any, Any]:
    """Model and tokenizer of a checkpoint, plain or converted."""
    tokenizer = load_tokenizer(name)
    if is_converted(name):
        return from_pretrained(name, tokenizer=tokenizer, dtype=dtype, device=device), tokenizer
    return load_model(name, dtype=dtype, device=device).eval(), tokenizer


class _Parts(NamedTuple):
    """The configuration that the weights in a folder are for: of a whole model, or of LoRA."""

    folder: Path
    variant: str | None
    model: dict[str, Any] | None
    lora: dict[str, Any] | None


def _parts_of(folder: Path) -> _Parts:
    config = settings_in(folder / CONFIG)
    if config.get("model_type") == MODEL_TYPE:
        parts = _Parts(folder, VARIANT, config.get("model"), config.get("lora"))
    elif (folder / ADAPTER).exists():  # as earlier versions left it
        parts = _Parts(folder, None, None, settings_in(folder / ADAPTER))
    else:  # likewise, or a model saved whole by transformers
        parts = _Parts(folder, None, config, None)
    for name, found in (("model", parts.model), ("lora", parts.lora)):
        if not isinstance(found, dict | None):
            raise CheckpointError(f"{folder / CONFIG} is damaged: {name} is {found!r}; restore it from a copy")
    if not (parts.model if parts.lora is None else parts.lora):
        raise CheckpointError(f"{folder} has addresses and no configuration of their model; restore it from a copy")
    return parts


def _plain_part(parts: _Parts, base: str | Path | None, dtype: torch.dtype | str, device: str | torch.device) -> Any:
    """The model without its addresses, which are attached next; under LoRA the model that it changes."""
    if parts.lora is None:
        if base is not None:
            raise InputError(f"base={str(base)!r}: the model in {parts.folder} is whole; leave base out")
        place = str(parts.folder.absolute())
        model, _ = load_weights(place, _configuration(parts), dtype, device, parts.variant)
        return model
    name = parts.lora.get(BASE) if base is None else str(base)
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{parts.folder} does not say what its LoRA changes ({BASE} is {name!r}); pass base=")
    if os.path.isdir(name) and is_converted(name):
        below = _parts_of(Path(name))
        if below.lora is not None:
            raise CheckpointError(f"{parts.folder} changes {name}, which holds LoRA itself; merge that one first")
        return _plain_part(below, None, dtype, device)
    try:
        return load_model(name, dtype=dtype, device=device)
    except InputError as error:
        raise InputError(f"{parts.folder} changes {name!r}; if it lies elsewhere, pass base=: {error}") from error


def _configuration(parts: _Parts) -> Any:
    """Read by transformers from a file of its own, as it reads all: it has spellings for what JSON cannot hold."""
    from transformers import AutoConfig

    # With the addresses named in it, attach would take the model for one that has lost them.
    settings = {key: value for key, value in (parts.model or {}).items() if key != NAME}
    with tempfile.TemporaryDirectory() as place, had_or_refused(str(parts.folder)):
        Path(place, CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        return AutoConfig.from_pretrained(place)


def _with_lora(model: Any, parts: _Parts, device: str) -> Any:
    from peft import PeftConfig, PeftModel

    refuse_pickle(parts.folder, LORA_WEIGHTS)
    if not (parts.folder / LORA_WEIGHTS).exists():  # PEFT would ask the hub for it
        raise CheckpointError(f"there is no {LORA_WEIGHTS} in {parts.folder}; restore it from a copy")
    with had_or_refused(str(parts.folder)), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        changes = PeftConfig.from_peft_type(**{**(parts.lora or {}), BASE: model.name_or_path})
        return PeftModel.from_pretrained(model, str(parts.folder), config=changes, torch_device=device)


def _tokenizer_in(folder: Path) -> Any:
    try:
        return load_tokenizer(str(folder))
    except CheckpointError as error:
        raise InputError(f"units are found in text, by the tokenizer: {error}; or pass tokenizer=") from error
