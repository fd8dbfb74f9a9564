"""The attention function that an attached model calls, and its mask function.

A layer attends in one of three ways. A single token needs every key in one version only: the model's own attention
does it, or with a near window the library's. Plain causal attention goes to a backend of the core. Anything else (a
sliding window, soft-capped scores, sinks, a mask of the caller's) goes to the model's own attention, given every key in
both versions and a mask that shows each query exactly one of them. The two queries of a near window are put side by
side there, each beside zeros of the other's keys.

Shapes: columns are the tokens read so far; keys, what the cache hands out: all columns, the last of them (a window), or
more (a static cache, filled up).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import StaticLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from contentrope.attention import backend_function, backend_name
from contentrope.attention.decode import attend_one
from contentrope.attention.pairs import Near, States, no_competition
from contentrope.errors import BackendError
from contentrope.hf.frame import Frame
from contentrope.hf.keys import Span, readdressed, settle
from contentrope.hf.masks import Exponent, Scores, doubled_mask, hidden_columns, single_mask

if TYPE_CHECKING:
    from contentrope.hf.adapter import Adapter
    from contentrope.hf.probe import Layer
    from contentrope.hf.rotary import LayerRotary

KEYWORD = "contentrope"
"""The keyword argument by which the state of a call reaches the attention function."""
OWN = ("sdpa", "eager")
"""Implementations of the model's own that can take both versions of a key, as they take any mask."""

Attention = Callable[..., tuple[Tensor, Tensor | None]]
Read = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From values to what attention makes of them."""


class Call(NamedTuple):
    """The state of a call, as attention functions get it."""

    adapter: Adapter
    frame: Frame


class Carried(tuple):
    """Cosines and sines of the rotary embedding, with the state of the call.

    For models whose layers do not pass keyword arguments on.
    """

    call: Call

    def __new__(cls, cos_sin: tuple[Tensor, ...], call: Call) -> Carried:
        made = super().__new__(cls, cos_sin)
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
        if getattr(module, "reads_addresses", False):
            raise BackendError(
                f"the state of the call did not reach layer {module.layer_idx} of {type(module).__name__}: "
                "call the model as a whole, and do not split it over devices"
            )
        return own_attention(module, own_name)(module, query, key, value, attention_mask, **options)
    adapter, frame = contentrope
    if frame.idle and module.layer_idx == min(adapter.layers):
        value = _Reached.apply(value, *frame.idle)
    layer, own = adapter.layers[cast(int, module.layer_idx)], partial(adapter.own_attention, module)
    if frame.as_it_stands or layer.rotary is None or frame.only_masked:
        mask = attention_mask
        if not frame.as_it_stands:
            competes = None if layer.rotary is None else layer.layer_idx
            mask = single_mask(frame, competes, attention_mask, Scores.of(query, key))
        return _shown(adapter, frame, layer, value, lambda x: own(query, key, x, mask, **options))
    read = _addressed(adapter, layer, frame, own, (query, key, value), attention_mask, options)
    if not frame.zero or frame.rule.query_memory is not None or options.get("dropout", 0.0):
        return read
    with torch.no_grad():
        exact, weights = own(query, key, value, attention_mask, **options)
    return _ValueOf.apply(read[0], exact), weights


def _shown(adapter: Adapter, frame: Frame, layer: Layer, value: Tensor, read: Read) -> tuple[Tensor, Tensor | None]:
    """What is read from the values, shown to whoever looks inside (:mod:`contentrope.hf.inspection`)."""
    if adapter.look is not None:
        adapter.look(layer.layer_idx, frame, value, read)
    return read(value)


class _ValueOf(Function):
    """The value of ``exact`` with the gradient of ``differentiated``, which equals it but for rounding.

    While all addresses are zero a model gives its own numbers to the last bit, and can be trained from there.
    """

    @staticmethod
    def forward(ctx: Any, differentiated: Tensor, exact: Tensor) -> Tensor:
        return exact.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Reached(Function):
    """``states`` as they are, with a gradient of zero for weights that did not make them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(*weights)
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *map(torch.zeros_like, ctx.saved_tensors)


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
    rotations, number = frame.rotations, cast(int, layer.rotary)
    rotary, span, store = adapter.rotaries[number], rotations.span, None
    near, far_query = frame.rule.near, None
    if near is not None and not rotations.fused:
        far_query = rotary.rotate_states(query, rotations.far_queries[number])
    if span is None:
        rotated, addressed = query, key
    elif rotations.fused:
        query, key, value = as_autocast(query, key, value)  # before they are rotated: half the memory to go through
        versions = rotations.fused[number].versions_of(query.transpose(1, 2), key.transpose(1, 2), rotary.pairs)
        rotated, _, addressed, *far_queries = (x.transpose(1, 2) for x in versions)
        far_query = far_queries[0] if far_queries else None
    else:
        rotated = query if near is not None else rotary.rotate_states(query, rotations.queries[number])
        if frame.store is not None and layer.shares is None:
            frame.store.half_rotated = True
            store = frame.store.layers[layer.layer_idx]
        key, addressed = _both_versions(frame, layer, store, key, rotary, single=query.shape[2] == 1)
    seen = States(rotated, key, addressed, value, far_query)

    def from_values(x: Tensor) -> tuple[Tensor, Tensor | None]:
        return _read(adapter, layer, frame, own, seen._replace(value=x), mask, options)

    read = _shown(adapter, frame, layer, value, from_values)
    if span is not None and addressed is not key:
        settle(store, addressed, span)
    return read


def _read(
    adapter: Adapter,
    layer: Layer,
    frame: Frame,
    own: Attention,
    states: States,
    mask: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    query, key, addressed, value, far_query = states
    scores, total = Scores.of(query, key), frame.total
    sees_all = key.shape[2] >= total and (layer.window is None or total <= layer.window)
    is_plain, is_single = layer.plain and frame.plain_mask and sees_all, query.shape[2] == 1
    competition = frame.competition_in(layer.layer_idx)
    if is_single and far_query is None:
        return own(query, addressed, value, single_mask(frame, layer.layer_idx, mask, scores), **options)
    if is_plain:
        key, addressed, value = (x[:, :, :total] for x in (key, addressed, value))
        states = States(query, key, addressed, value, far_query)
        if is_single:
            return _one_token(frame, states, mask, competition, options), None
        return _by_backend(adapter.backend, frame, states, competition, options), None
    query, doubled = _doubled(query, far_query, key, addressed)
    doubled_value, scale = torch.cat((value, value), dim=2), options.get("scaling") or states.query.shape[-1] ** -0.5
    seen = doubled_mask(frame, layer.layer_idx, mask, scores)
    return own(query, doubled, doubled_value, seen, **{**options, "scaling": scale})


def _doubled(
    query: Tensor, far_query: Tensor | None, key: Tensor, addressed: Tensor
) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch kv_heads doubled size"]]:
    """Addressed keys with local ones behind them. Of two queries each takes half of a larger head."""
    if far_query is None:
        return query, torch.cat((addressed, key), dim=2)
    query = torch.cat((far_query, query), dim=-1)
    sides = F.pad(addressed, (0, key.shape[-1])), F.pad(key, (key.shape[-1], 0))
    return query, torch.cat(sides, dim=2)


def _one_token(
    frame: Frame,
    states: States,
    mask: Tensor | None,
    competition: Exponent,
    options: dict[str, Any],
) -> Float[Tensor, "batch 1 heads head_dim"]:
    """With a near window: near and far keys, each by its query; every key is in the one version it is read in."""
    query, _, key, value, far_query = states
    assert far_query is not None
    rule, moved = frame.rule, frame.moved
    near = cast(Near, rule.near)
    wide = torch.promote_types(query.dtype, torch.float32)
    key_memory = near.key_memory
    if key_memory is not None and rule.query_memory is not None:
        key_memory = key_memory & ~rule.query_memory
    bounds = None
    if moved is not None and rule.query_memory is None and not torch.compiler.is_compiling():
        bounds = moved.after.least, moved.after.most
    out = attend_one(
        query,
        far_query,
        key,
        value,
        near.begin,
        taken=None if no_competition(competition) else rule.own_unit_bonus(competition, wide),
        key_memory=key_memory,
        hidden=hidden_columns(frame, mask, key.shape[2]),
        scale=options.get("scaling") or query.shape[-1] ** -0.5,
        begin_bounds=bounds,
    )
    return out.transpose(1, 2)


def _both_versions(
    frame: Frame, layer: Layer, store: Any, key: Tensor, rotary: LayerRotary, *, single: bool
) -> tuple[Tensor, Tensor]:
    """Keys as their own unit reads them, and as others do."""
    if layer.shares is not None:
        return frame.shared[layer.shares]
    number, span = cast(int, layer.rotary), cast(Span, frame.rotations.span)
    addressed = readdressed(key, store, span, number, rotary, in_place=single and not torch.is_grad_enabled())
    if layer.is_shared:
        # A static cache overwrites its keys before the other layers read them.
        frame.shared[layer.layer_idx] = key.clone() if isinstance(store, StaticLayer) else key, addressed
    return key, addressed


def _by_backend(
    backend: str, frame: Frame, states: States, competition: Exponent, options: dict[str, Any]
) -> Float[Tensor, "batch queries heads head_dim"]:
    """Attention by a backend of the library's own."""
    query = states.query
    call = {"dropout": options.get("dropout", 0.0), "cached": frame.offset > 0}
    if backend == "auto" and torch.compiler.is_compiling():
        backend = backend_name(backend, query, query.shape[-1], **call)
        # Tiles are cut by where units begin, which a compiler cannot follow.
        backend = "reference" if backend == "tiled" else backend
    function = backend_function(backend, query, **call)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    states = States(*as_autocast(*states))  # as PyTorch's own attention does
    out = function(states, frame.rule, competition=competition, dropout=call["dropout"], scale=scale)
    return out.transpose(1, 2).contiguous()


def as_autocast(*states: Tensor | None) -> tuple[Any, ...]:
    """In the dtype that PyTorch computes attention in here."""
    device = next(x.device.type for x in states if x is not None)
    if not torch.is_autocast_enabled(device):
        return states
    dtype = torch.get_autocast_dtype(device)
    return tuple([None if x is None else x.to(dtype) for x in states])


def mask_of(*args: Any, own_name: str, **kwargs: Any) -> Any:
    """The mask that the model's own attention would be given."""
    return ALL_MASK_ATTENTION_FUNCTIONS[own_name](*args, **kwargs)


def register() -> None:
    """Make the functions known to transformers. Without a mask function of the same name padding would be lost."""
    for own in OWN:
        AttentionInterface.register(name_of(own), partial(attend, own_name=own))
        AttentionMaskInterface.register(name_of(own), partial(mask_of, own_name=own))
