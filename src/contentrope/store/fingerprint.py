"""What stored keys and values depend on: the weights and settings of a model and of its addresses; and keys of units.

The head of a model is not among it, as no key or value depends on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from contentrope import sealed
from contentrope.config import differences
from contentrope.errors import InputError
from contentrope.hf.adapter import Adapter
from contentrope.hf.addresses import NAME
from contentrope.results import json_bytes
from contentrope.store.precision import MODEL

FORMAT = 1
PASSING = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", NAME}
"""Settings of a model's configuration that change no key and no value."""


def fingerprint_of(adapter: Adapter, precision: str) -> dict[str, Any]:
    """As JSON, setting by setting, so that a difference can be named."""
    settings = adapter.settings()
    config = adapter.model.config.get_text_config().to_dict()
    return {
        "format": FORMAT,
        "model": type(adapter.model).__name__,
        "dtype": str(adapter.embedding.dtype).removeprefix("torch."),
        "weights": sealed.fingerprint(_weights(adapter).items()),
        "addresses": sealed.fingerprint(adapter.trained.state_dict().items()),
        "adapter": {**settings, "turnings": _digest(settings["turnings"])},
        "config": {name: _digest(value) for name, value in config.items() if name not in PASSING},
        "lora": _digest(_scalings(adapter.decoder)),
        # Not said of the model's own, as stores were before there was another.
        **({} if precision == MODEL else {"precision": precision}),
    }


def differences_of(ours: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """What differs. A setting that only one version of transformers knows does not."""
    theirs = stored.get("config", {})
    both = {name: value for name, value in ours["config"].items() if name in theirs}
    known = {name: value for name, value in theirs.items() if name in both}
    return differences({**ours, "config": both}, {**stored, "config": known})


def unit_key(fingerprint: str, ids: Sequence[int]) -> str:
    """The key of a unit: SHA-256 of the digest of a fingerprint and of the token ids.

    >>> unit_key("model", [1, 2])[:8], unit_key("model", [2, 1])[:8]
    ('44a19562', '016195b2')
    """
    return hashlib.sha256(fingerprint.encode() + np.asarray(ids, dtype="<i8").tobytes()).hexdigest()


def document_key(units: Sequence[str]) -> str:
    """Of a document in one unit, that unit's; of a longer one, a hash of its units in their order."""
    return units[0] if len(units) == 1 else hashlib.sha256(f"document {' '.join(units)}".encode()).hexdigest()


def digest_of(fingerprint: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_bytes(fingerprint, "the fingerprint")).hexdigest()


def tensor_digest(*tensors: Shaped[Tensor, "..."]) -> str:
    """SHA-256 of dtype, shape and contents."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Watch:
    """Notices that a model was changed, without looking at its weights: PyTorch counts what is written to them."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.seen = self._state()

    def refuse_if_changed(self) -> None:
        if self._state() != self.seen:
            raise InputError(
                "the model has changed since the store was opened, so what is stored is another model's: undo it, or "
                "open a store for the model as it is now"
            )

    def _state(self) -> tuple[Any, ...]:
        adapter = self.adapter
        tensors: Iterable[Tensor] = (*_weights(adapter).values(), *adapter.trained.state_dict().values())
        versions = tuple((x.data_ptr(), None if x.is_inference() else x._version) for x in tensors)
        return adapter.gate, adapter.window, adapter.competition, adapter.own, _scalings(adapter.decoder), versions


def _weights(adapter: Adapter) -> dict[str, Tensor]:
    """Of the decoder; the addresses are among them where the model has no head."""
    weights: dict[str, Tensor] = adapter.decoder.state_dict(keep_vars=True)
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{NAME}.")}
    if any(isinstance(tensor, DTensor) for tensor in weights.values()):
        raise InputError("the weights are spread over processes; a store needs a model that is whole on one device")
    return weights


def _scalings(decoder: nn.Module) -> list[str]:
    """How much LoRA changes, which its weights do not say."""
    found = []
    for name, module in decoder.named_modules():
        if isinstance(scaling := getattr(module, "scaling", None), dict):
            found.append(f"{name} {module.active_adapters} {scaling} {getattr(module, 'disable_adapters', False)}")
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(_ordered(value)).encode()).hexdigest()[:16]


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((str(key), _ordered(inner)) for key, inner in value.items())
    return [_ordered(inner) for inner in value] if isinstance(value, list | tuple) else value
