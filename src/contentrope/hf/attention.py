"""The attention function that an attached model calls, and its mask function.

A layer is read in one of three ways. A single token needs every key in one version only: the model's own attention
does it. Plain causal attention goes to a backend of the core. Anything else (a window, soft-capped scores, sinks, a
mask of the caller's) goes to the model's own attention, given every key in both versions and a mask that shows each
query exactly one of them.

Shapes: columns are the tokens read so far; keys, what the cache hands out: all columns, the last of them (a window), or
more (a static cache, filled up).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import StaticLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from contentrope.attention import backend_function, backend_name
from contentrope.errors import BackendError
from contentrope.hf.frame import Frame
from contentrope.hf.keys import Window, placed, readdressed, settle
from contentrope.hf.masks import Exponent, doubled_mask, single_mask

if TYPE_CHECKING:
    from contentrope.hf.adapter import Adapter
    from contentrope.hf.probe import Layer
    from contentrope.hf.rotary import Turning

KEYWORD = "contentrope"
"""By which the state of a call reaches the attention function."""
OWN = ("sdpa", "eager")
"""Implementations of the model's own that can be handed both versions of a key: they take any mask."""

Attention = Callable[..., tuple[Tensor, Tensor | None]]


class Call(NamedTuple):
    """The state of a call, as every attention function is handed it."""

    adapter: Adapter
    frame: Frame


class Carried(tuple):
    """What the rotary embedding gave, cosines and sines, with the state of the call: all layers are handed it.

    For models whose layers do not hand on keyword arguments.
    """

    call: Call

    def __new__(cls, turns: tuple[Tensor, ...], call: Call) -> Carried:
        made = super().__new__(cls, turns)
        made.call = call
        return made


def name_of(own: str) -> str:
    """The registered name of addressed attention over one of the model's own implementations."""
    return f"contentrope_{own}"


def own_attention(module: nn.Module, own: str) -> Attention:
    """The function the model would call without us; its eager one stands next to its attention class."""
    if own != "eager":
        return ALL_ATTENTION_FUNCTIONS[own]
    return sys.modules[type(module).__module__].eager_attention_forward


def attend(
    module: nn.Module,
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    attention_mask: Tensor | None,
    *,
    own_name: str,
    contentrope: Call | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    if contentrope is None:
        _refuse_if_attached(module)
        return own_attention(module, own_name)(module, query, key, value, attention_mask, **options)
    adapter, frame = contentrope
    if frame.as_it_stands:
        return adapter.own_attention(module, query, key, value, attention_mask, **options)
    layer = adapter.layers[cast(int, module.layer_idx)]
    if layer.turning is None or frame.only_masked:
        competes = None if layer.turning is None else layer.layer_idx
        mask = single_mask(frame, competes, attention_mask, key.shape[2], query.dtype, query.shape[1])
        return adapter.own_attention(module, query, key, value, mask, **options)
    own = partial(adapter.own_attention, module)
    read = _addressed(adapter, layer, frame, own, (query, key, value), attention_mask, options)
    if not frame.zero or frame.rule.query_memory is not None or options.get("dropout", 0.0):
        return read
    with torch.no_grad():
        exact, weights = own(query, key, value, attention_mask, **options)
    return _ValueOf.apply(read[0], exact), weights


class _ValueOf(Function):
    """The value of one tensor with the gradient of another, equal to it but for rounding.

    While all addresses are zero a model gives its own numbers to the last bit, and can be trained from there.
    """

    @staticmethod
    def forward(ctx: Any, differentiated: Tensor, exact: Tensor) -> Tensor:
        return exact.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _addressed(
    adapter: Adapter,
    layer: Layer,
    frame: Frame,
    own: Attention,
    states: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    query, key, value = states
    single = query.shape[2] == 1
    number = cast(int, layer.turning)
    turning = adapter.turnings[number]
    store = None
    if frame.window is None:
        turned, addressed = query, key
    elif frame.turns:
        states = frame.turns[number].of(query.transpose(1, 2), key.transpose(1, 2), turning.pairs)
        turned, addressed = states[0].transpose(1, 2), states[2].transpose(1, 2)
    else:
        turned = turning.turn(query.transpose(1, 2), frame.queries[number]).transpose(1, 2)
        store = _store(frame, layer)
        key, addressed = _both_versions(frame, layer, store, key, turning, single=single, new=query.shape[2])
    if single:
        read = own(
            turned,
            addressed,
            value,
            single_mask(frame, layer.layer_idx, mask, key.shape[2], query.dtype, query.shape[1]),
            **options,
        )
    elif layer.plain and frame.plain_mask and _sees_whole(layer, frame, key):
        competition = frame.competition_in(layer.layer_idx)
        read = _by_backend(adapter.backend, frame, turned, key, addressed, value, competition, options), None
    else:
        doubled = torch.cat((addressed, key), dim=2), torch.cat((value, value), dim=2)
        read = own(
            turned,
            *doubled,
            doubled_mask(frame, mask, key.shape[2], frame.competition_in(layer.layer_idx), query.dtype, query.shape[1]),
            **options,
        )
    if frame.window is not None and addressed is not key:
        settle(store, addressed, frame.window)
    return read


def _both_versions(
    frame: Frame, layer: Layer, store: Any, key: Tensor, turning: Turning, *, single: bool, new: int
) -> tuple[Tensor, Tensor]:
    """Keys as their own unit reads them, the ``new`` ones last, and as others do."""
    if layer.shares is not None:
        return frame.shared[layer.shares]
    window, number = cast(Window, frame.window), cast(int, layer.turning)
    addressed = readdressed(key, store, window, number, turning, in_place=single and not torch.is_grad_enabled())
    if frame.places and not single:
        key = placed(key, new, frame.places[number], frame.total, turning)
    if layer.is_shared:
        # What a static cache holds is written over before the others read it.
        frame.shared[layer.layer_idx] = key.clone() if isinstance(store, StaticLayer) else key, addressed
    return key, addressed


def _store(frame: Frame, layer: Layer) -> Any:
    """The layer of the cache that has just been given the call's keys; about to be turned, it is marked."""
    if frame.store is None or layer.shares is not None:
        return None
    frame.store.half_turned = True
    return frame.store.layers[layer.layer_idx]


def _sees_whole(layer: Layer, frame: Frame, key: Tensor) -> bool:
    """Whether all columns are here, and no query looks back at only some of them."""
    return key.shape[2] >= frame.total and (layer.window is None or frame.total <= layer.window)


def _by_backend(
    backend: str,
    frame: Frame,
    query: Tensor,
    key: Tensor,
    addressed: Tensor,
    value: Tensor,
    competition: Exponent,
    options: dict[str, Any],
) -> Float[Tensor, "batch queries heads head_dim"]:
    dropout = options.get("dropout", 0.0)
    function = _backend(backend, query, dropout=dropout, cached=frame.offset > 0)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    states = [query, *(x[:, :, : frame.total] for x in (key, addressed, value))]
    if torch.is_autocast_enabled(device := query.device.type):  # as PyTorch's own attention does
        states = [x.to(torch.get_autocast_dtype(device)) for x in states]
    out = function(*states, frame.rule, competition=competition, dropout=dropout, scale=scale)
    return out.transpose(1, 2).contiguous()


def _backend(name: str, query: Tensor, *, dropout: float, cached: bool) -> Callable[..., Tensor]:
    if name == "auto" and torch.compiler.is_compiling():
        name = backend_name(name, query, query.shape[-1], dropout=dropout, cached=cached)
        # Tiles are cut by where units begin, which a compiler cannot follow.
        name = "reference" if name == "tiled" else name
    return backend_function(name, query, dropout=dropout, cached=cached)


def _refuse_if_attached(module: nn.Module) -> None:
    if getattr(module, "reads_addresses", False):
        raise BackendError(
            f"the state of the call did not reach layer {module.layer_idx} of {type(module).__name__}: "
            "call the model as a whole, and do not split it over devices"
        )


def mask_of(*args: Any, own_name: str, **kwargs: Any) -> Any:
    """The mask that the model's own attention would be given."""
    return ALL_MASK_ATTENTION_FUNCTIONS[own_name](*args, **kwargs)


def register() -> None:
    """Make the functions known to transformers. Without a mask function of the same name padding would be lost."""
    for own in OWN:
        AttentionInterface.register(name_of(own), partial(attend, own_name=own))
        AttentionMaskInterface.register(name_of(own), partial(mask_of, own_name=own))
