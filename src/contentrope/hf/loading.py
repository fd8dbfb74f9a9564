"""Loading converted models as they were saved, and addresses into an attached model. What lies where: ``layout.py``.

A model that was saved whole while attached to (its own ``save_pretrained``, a checkpoint of ``Trainer``) holds its
addresses among its weights; they are found there too.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from contentrope.config import differences
from contentrope.errors import CheckpointError, InputError
from contentrope.hf import layout, plain
from contentrope.hf.adapter import Adapter, adapter_of
from contentrope.hf.addresses import NAME
from contentrope.hf.api import attach
from contentrope.hf.base import fingerprint_like
from contentrope.hf.units import texts_of
from contentrope.sealed import unseal
from contentrope.training.distributed import placed
from contentrope.units import Rule, rule_described
from contentrope.units.descriptions import as_far_as_said, upgraded

LORA_WEIGHTS = "adapter_model.safetensors"
RESTORED = ("gate", "competition")
"""Settings that a model takes over from the file; in all others they must agree."""
NUMBER = (int, float)
TYPES: dict[str, tuple[type, ...]] = {
    "hidden_size": (int,),
    "layers": (dict,),
    "turnings": (dict,),
    "units": (dict,),
    "max_length": (int,),
    "reader": (list,),
    "learn_competition": (bool,),
    "competition": NUMBER,
    "gate": NUMBER,
    "window": (int,),
}
"""Of the settings; "turnings" are the model's rotaries."""
UNSAID = {"competition": 0.0, "learn_competition": False, "reader": [], "window": 0}
"""Of the first files, which lack these settings."""
PRECISION = {1: 5e-3, layout.FORMAT: 2e-5}
"""Of frequencies, relative. Those in files of the first format were measured from cosines in the model's dtype."""


# --- whole models ---


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

    Units, positions, competition and readers are those it was saved with. Where units are found in text, the
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
    if not layout.is_converted(folder):
        raise InputError(f"{folder} holds no model with addresses; load it as usual and give it some with attach")
    parts, settings = _parts_of(folder), _read_addresses(folder).settings
    plain.require_transformers(peft=parts.lora is not None)
    model = _plain_part(parts, base, dtype, device)
    rule = units
    try:
        if rule is None:
            rows = len(model.get_input_embeddings().weight)
            rule = rule_described(settings["units"], lambda: texts_of(tokenizer or _tokenizer_in(folder), rows))
        names = ("window", "max_length", "competition", "learn_competition", "reader")
        model = attach(model, units=rule, positions=settings["gate"], **{name: settings[name] for name in names})
    except InputError as error:
        raise CheckpointError(f"the model in {folder} cannot be given its addresses: {error}") from error
    if parts.lora is not None:
        model = _with_lora(model, parts, str(device))
    load(model, folder)
    return model.eval()


def load_any(name: str, *, device: str = "cpu", dtype: torch.dtype | str = "auto") -> tuple[Any, Any]:
    """Model and tokenizer of a checkpoint, plain or converted."""
    tokenizer = plain.load_tokenizer(name)
    if layout.is_converted(name):
        return from_pretrained(name, tokenizer=tokenizer, dtype=dtype, device=device), tokenizer
    return plain.load_model(name, dtype=dtype, device=device).eval(), tokenizer


class _Parts(NamedTuple):
    """The configuration that the weights in a folder are for: of a whole model, or of LoRA."""

    folder: Path
    variant: str | None
    model: dict[str, Any] | None
    lora: dict[str, Any] | None
    changed: dict[str, Any] | None = None
    """The fingerprint of what LoRA changes."""


def _parts_of(folder: Path) -> _Parts:
    config = layout.settings_in(folder / layout.CONFIG)
    if config.get("model_type") == layout.MODEL_TYPE:
        changed = config.get(layout.CHANGED)
        parts = _Parts(folder, layout.VARIANT, config.get("model"), config.get("lora"), changed)
    elif (folder / layout.ADAPTER).exists():  # as earlier versions left it
        parts = _Parts(folder, None, None, layout.settings_in(folder / layout.ADAPTER))
    else:  # likewise, or a model saved whole by transformers
        parts = _Parts(folder, None, config, None)
    for name, found in (("model", parts.model), ("lora", parts.lora), (layout.CHANGED, parts.changed)):
        if not isinstance(found, dict | None):
            raise CheckpointError(f"{folder / layout.CONFIG} is damaged: {name} is {found!r}; restore it from a copy")
    if not (parts.model if parts.lora is None else parts.lora):
        raise CheckpointError(f"{folder} has addresses and no configuration of their model; restore it from a copy")
    return parts


def _plain_part(parts: _Parts, base: str | Path | None, dtype: torch.dtype | str, device: str | torch.device) -> Any:
    """The model without its addresses, which are attached next; under LoRA the model that it changes."""
    if parts.lora is None:
        if base is not None:
            raise InputError(f"base={str(base)!r}: the model in {parts.folder} is whole; leave base out")
        place = str(parts.folder.absolute())
        model, _ = plain.load_weights(place, _configuration(parts), dtype, device, parts.variant)
        return model
    name = parts.lora.get(layout.BASE) if base is None else str(base)
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"{parts.folder} does not say what its LoRA changes ({layout.BASE} is {name!r}); pass base="
        )
    if os.path.isdir(name) and layout.is_converted(name):
        below = _parts_of(Path(name))
        if below.lora is not None:
            raise CheckpointError(f"{parts.folder} changes {name}, which holds LoRA itself; merge that one first")
        return _expected(parts, name, lambda dtype: _plain_part(below, None, dtype, device), dtype)
    try:
        return _expected(parts, name, lambda dtype: plain.load_model(name, dtype=dtype, device=device), dtype)
    except InputError as error:
        raise InputError(f"{parts.folder} changes {name!r}; if it lies elsewhere, pass base=: {error}") from error


def _expected(parts: _Parts, name: str, load: Callable[[torch.dtype | str], Any], dtype: torch.dtype | str) -> Any:
    """The model that LoRA changes, if it is the one that it changed."""
    model = load(dtype)
    if parts.changed is not None and parts.changed != fingerprint_like(parts.changed, model, load):
        raise CheckpointError(
            f"{parts.folder} changes a model with other weights than those in {name}, which has the same shape; pass "
            "the one it was made from as base="
        )
    return model


def _configuration(parts: _Parts) -> Any:
    """Read by transformers from a file, as it has spellings for what JSON cannot hold."""
    from transformers import AutoConfig

    # With the addresses named in it, attach would take the model for one that has lost them.
    settings = {key: value for key, value in (parts.model or {}).items() if key != NAME}
    with tempfile.TemporaryDirectory() as place, plain.had_or_refused(str(parts.folder)):
        Path(place, layout.CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        return AutoConfig.from_pretrained(place)


def _with_lora(model: Any, parts: _Parts, device: str) -> Any:
    from peft import PeftConfig, PeftModel

    plain.refuse_pickle(parts.folder, LORA_WEIGHTS)
    if not (parts.folder / LORA_WEIGHTS).exists():  # PEFT would ask the hub for it
        raise CheckpointError(f"there is no {LORA_WEIGHTS} in {parts.folder}; restore it from a copy")
    with plain.had_or_refused(str(parts.folder)), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        changes = PeftConfig.from_peft_type(**{**(parts.lora or {}), layout.BASE: model.name_or_path})
        return PeftModel.from_pretrained(model, str(parts.folder), config=changes, torch_device=device)


def _tokenizer_in(folder: Path) -> Any:
    try:
        return plain.load_tokenizer(str(folder))
    except CheckpointError as error:
        raise InputError(f"units are found in text, by the tokenizer: {error}; or pass tokenizer=") from error


# --- addresses alone ---


class _Saved(NamedTuple):
    """Addresses as they lie in a folder."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    format: int


def load(model: nn.Module, folder: str | Path) -> None:
    """Fill the addresses of an attached model, and set its gate and competition to what they were saved with.

    Refused, with the difference named, if they were made for another model, other units or another length.
    """
    adapter, folder = adapter_of(model), Path(folder)
    theirs, tensors, number = _read_addresses(folder)
    restored = {name: float(theirs.pop(name)) for name in RESTORED}
    ours = {name: value for name, value in adapter.settings().items() if name not in RESTORED}
    ours["units"] = as_far_as_said(ours["units"], theirs["units"])
    theirs["turnings"] = {
        n: _as_precise(ours["turnings"].get(n), rotary, PRECISION[number]) for n, rotary in theirs["turnings"].items()
    }
    if found := differences(ours, theirs):
        raise CheckpointError(f"the addresses in {folder} do not fit: {'; '.join(found)}")
    if "parameters" not in theirs["units"]:
        warnings.warn(
            f"the units in {folder} were saved as the rule {theirs['units']['rule']} without its parameters, so nobody "
            "can tell whether they were these; save it again",
            stacklevel=2,
        )
    _fill(adapter, tensors, folder)
    adapter.set(**restored)


def _read_addresses(folder: Path) -> _Saved:
    """Settings and weights of the addresses in a folder, every setting there and of its type."""
    checked = True
    if (folder / layout.ADDRESSES).exists():
        where, (carried, tensors, checked) = folder / layout.ADDRESSES, unseal(folder / layout.ADDRESSES)
        _compare_with_json(folder, carried)
    else:
        where, tensors = folder / layout.CONFIG, _among_weights(folder)
        carried = layout.settings_in(folder / layout.CONFIG).get(NAME, {})
    settings = {**UNSAID, **_mapping(carried)}
    number = settings.pop("format", layout.FORMAT if "rule" in _mapping(settings.get("units")) else 1)
    if type(number) is not int or number not in PRECISION:
        raise CheckpointError(f"{folder} has format {number}, this version reads {', '.join(map(str, PRECISION))}")
    if number == layout.FORMAT and not checked:
        raise CheckpointError(f"{where} is damaged (its checksum is gone); restore it from a copy")
    wrong = [name for name, types in TYPES.items() if not _is(settings.get(name), types)]
    wrong = wrong or [name for name in RESTORED if not math.isfinite(settings[name])]
    wrong = wrong or [name for name in ("gate",) if not 0.0 <= settings[name] <= 1.0]
    wrong = wrong or [name for name in ("gate", "window") if settings["window"] and settings["gate"]]
    if wrong:
        found = "; ".join(f"{name} is {settings.get(name)!r}" for name in wrong[:4])
        raise CheckpointError(f"the settings of the addresses in {where} are damaged: {found}")
    try:
        settings["units"] = upgraded(settings["units"])
    except InputError as error:
        raise CheckpointError(f"the settings of the addresses in {where} are damaged: {error}") from error
    return _Saved(settings, tensors, number)


def _is(value: Any, types: tuple[type, ...]) -> bool:
    """JSON's true is no number; lists are of token ids or counts."""
    return type(value) in types and (not isinstance(value, list) or all(type(item) is int for item in value))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _compare_with_json(folder: Path, carried: Any) -> None:
    """Refuse an edited ``contentrope.json``, which the addresses would not follow."""
    path = folder / layout.SETTINGS
    if path.is_file() and (found := differences(_mapping(carried), layout.settings_in(path))):
        raise CheckpointError(
            f"{path} is not what the addresses were saved with: {'; '.join(found[:4])}; undo the change, or delete it: "
            f"{layout.ADDRESSES} has the settings too"
        )


def _among_weights(folder: Path) -> dict[str, Tensor]:
    """The addresses among the weights of a model that was saved while attached to."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if name.startswith(f"{NAME}.")]  # noqa: SIM118
                found.update({name.removeprefix(f"{NAME}."): file.get_tensor(name) for name in names})
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged ({error}); restore it from a copy") from error
    if not found:
        raise CheckpointError(
            f"no addresses in {folder}: neither {layout.ADDRESSES} nor a model saved with {NAME!r} weights"
        )
    return found


def _as_precise(ours: Any, theirs: Any, precision: float) -> Any:
    """A rotary as it was saved, with our frequencies where those saved are the same to this precision."""
    held = _mapping(theirs).get("frequency")
    if ours is None or not isinstance(held, list) or len(held) != len(ours["frequency"]):
        return theirs
    pairs = zip(ours["frequency"], held, strict=True)
    close = all(type(x) in NUMBER and math.isclose(a, x, rel_tol=precision) for a, x in pairs)
    return {**theirs, "frequency": ours["frequency"]} if close else theirs


def _fill(adapter: Adapter, tensors: dict[str, Tensor], folder: Path) -> None:
    ours = adapter.trained.state_dict()
    unequal = [n for n in {*ours, *tensors} if n not in ours or n not in tensors or ours[n].shape != tensors[n].shape]
    broken = unequal or [name for name, t in tensors.items() if not bool(torch.isfinite(t).all())]
    if broken:
        raise CheckpointError(f"the addresses in {folder} are damaged: {', '.join(sorted(broken))}")
    adapter.trained.load_state_dict({name: placed(t, ours[name]) for name, t in tensors.items()})
    adapter.missing = False
