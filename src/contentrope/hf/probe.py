"""The layers of a model as probing calls show them: how each rotates, and what its attention does besides."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel

from contentrope.attention import PairRule, backend_function
from contentrope.attention.pairs import States
from contentrope.errors import InputError
from contentrope.hf.attention import mask_of, own_attention
from contentrope.hf.rotary import LayerRotary, Source, rotary_of, sources_of, stands_still
from contentrope.hf.state import KINDS
from contentrope.units import FixedLength, segment

POSITIONS = (0, 1, 5)
NEEDS_ITS_OWN = ("softcap", "s_aux", "position_bias")
"""Options of an attention call that change scores or weights: soft-capping, sinks, biases."""
KEYWORD_ALONG = "contentrope_along"
KINDS_OF_MASK = ("full_attention", "sliding_attention")


class Layer(NamedTuple):
    layer_idx: int
    rotary: int | None
    """Which of the model's rotaries; None: the layer has no positions, so it takes no addresses."""
    plain: bool
    """Whether attention is scores, softmax and values and nothing else."""
    window: int | None
    """How many columns a query looks back at; None: all of them."""
    heads: int
    """Query heads."""
    shares: int | None = None
    """The layer whose keys and values it reads, if it has none of its own."""
    is_shared: bool = False
    """Whether others read its keys and values."""


class Found(NamedTuple):
    layers: dict[int, Layer]
    """By their index."""
    rotaries: list[LayerRotary]
    modules: list[nn.Module]
    """Its attention modules."""
    hands_on_keywords: bool
    """Whether a keyword argument of the decoder reaches every attention function."""


class Seen(NamedTuple):
    """One attention call of a probing run."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    cos_sin: _Marked | None
    options: dict[str, Any]
    out: Tensor
    reached: bool
    """Whether a keyword argument of the decoder has come through."""


class _Marked(tuple):
    """The output of a rotary embedding, as opposed to other tuples."""

    wide: tuple[Tensor, ...]
    """The same in float32 at least."""


def rotary_modules(decoder: nn.Module) -> list[nn.Module]:
    return [m for m in decoder.modules() if "rotaryembedding" in type(m).__name__.lower()]


def layers_of(model: PreTrainedModel, decoder: nn.Module, own: str) -> Found:
    """The layers, found by calls with a few tokens: each alone at several positions, then all together."""
    embedding = cast(Tensor, model.get_input_embeddings().weight)
    tokens = torch.arange(min(6, len(embedding)), device=embedding.device)
    parameters = inspect.signature(decoder.forward).parameters.values()
    along = {KEYWORD_ALONG: True} if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters) else {}
    cache, alone = _cache_of(model), {}
    with _probing(model, decoder, own) as calls:
        for position in POSITIONS:
            inputs: dict[str, Any] = {"past_key_values": cache} if position == 0 else {}
            inputs |= {"use_cache": position == 0, "position_ids": torch.full_like(tokens[:, None], position)}
            alone[position] = _ask(model, decoder, calls, tokens[:, None], inputs)
        together = _ask(model, decoder, calls, tokens[None], {"use_cache": False, **along})
    shares = _shares(alone[0])
    _refuse_changed_keys(model, cache, {i: call.key for i, call in alone[0].items() if i not in shares})
    sources = [source for m in rotary_modules(decoder) for source in sources_of(m)]
    layers, rotaries = {}, list[LayerRotary]()
    for index in sorted(alone[0]):
        rotary = _rotary_of_layer({p: alone[p][index] for p in POSITIONS}, sources, model, index)
        number = next((n for n, known in enumerate(rotaries) if rotary is not None and known.same_as(rotary)), None)
        if rotary is not None and number is None:
            number = len(rotaries)
            rotaries.append(rotary)
        kind, window = _kind_of_mask(model, index, together[index].options)
        plain = kind in KINDS_OF_MASK and _is_plain(together[index], tokens)
        heads = together[index].query.shape[1]
        layers[index] = Layer(index, number, plain, window, heads, shares.get(index), index in shares.values())
    if not rotaries:
        raise InputError(f"{type(model).__name__} rotates none of its keys: it has no rotary positions to build on")
    modules = [call.module for call in together.values()]
    return Found(layers, rotaries, modules, all(call.reached for call in together.values()))


# --- calls ---


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While it lasts, no dropout and no gradients; afterwards every module trains or not, as it did."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _probing(model: PreTrainedModel, decoder: nn.Module, own: str) -> Iterator[list[Seen]]:
    """The calls of the model's attention, while it lasts."""
    calls: list[Seen] = []

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        cos_sin, reached = options.pop("contentrope", None), options.pop(KEYWORD_ALONG, False)
        out = own_attention(module, own)(module, query, key, value, attention_mask, **options)
        calls.append(Seen(module, query, key, value, attention_mask, cos_sin, options, out[0], reached))
        return out

    AttentionInterface.register("contentrope_probe", attend)
    AttentionMaskInterface.register("contentrope_probe", partial(mask_of, own_name=own))
    handles = [
        *(m.register_forward_hook(_mark, with_kwargs=True) for m in rotary_modules(decoder)),
        *(m.register_forward_pre_hook(_pass_on, with_kwargs=True) for m in decoder.modules()),
    ]
    try:
        model.set_attn_implementation("contentrope_probe")
        with evaluating(model):
            yield calls
    finally:
        model.set_attn_implementation(own)
        for handle in handles:
            handle.remove()


def _mark(module: nn.Module, args: Any, kwargs: dict[str, Any], cos_sin: Any) -> Any:
    """Cosines and sines have the dtype of the hidden states; called with wider ones, a module rounds less."""

    def widened(x: Any) -> Any:
        return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x

    if not isinstance(cos_sin, tuple):
        return cos_sin
    marked = _Marked(cos_sin)
    marked.wide = cos_sin
    if any(x.dtype.itemsize < 4 for x in cos_sin):
        marked.wide = module.forward(*map(widened, args), **{k: widened(x) for k, x in kwargs.items()})
    return marked


def _pass_on(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """As in an attached model: cosines and sines handed to an attention module go on to the attention function."""
    if hasattr(module, "layer_idx") and isinstance(cos_sin := kwargs.get("position_embeddings"), _Marked):
        return args, {**kwargs, "contentrope": cos_sin}
    return None


def _ask(
    model: PreTrainedModel, decoder: nn.Module, calls: list[Seen], ids: Tensor, more: dict[str, Any]
) -> dict[int, Seen]:
    """The attention call of every layer, by its index."""
    name, expected = type(model).__name__, model.config.get_text_config().num_hidden_layers
    calls.clear()
    try:
        decoder(input_ids=ids, **more)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{name} cannot be attached to: asked for a few tokens to see how it rotates, it failed with "
            f"{type(error).__name__}: {error}"
        ) from error
    found = {cast(int, getattr(call.module, "layer_idx", None)): call for call in calls}
    if len(found) < len(calls):
        raise InputError(
            f"{name} calls {len(found)} attention modules {len(calls)} times for one text: only decoders that go "
            "through every layer once can be attached to"
        )
    if len(found) != expected:
        raise InputError(
            f"{name} calls attention in {len(found)} of {expected} layers: only decoders with one self-attention in "
            "every layer can be attached to"
        )
    return found


def _cache_of(model: PreTrainedModel) -> DynamicCache:
    config = model.config.get_text_config()
    if getattr(config, "num_hidden_layers", None) is None:
        raise InputError(f"{type(model).__name__} is no plain decoder: its configuration has no num_hidden_layers")
    cache = DynamicCache(config=config)
    if others := sorted({type(layer).__name__ for layer in cache.layers if type(layer) not in KINDS}):
        raise InputError(
            f"{type(model).__name__} keeps more in its cache than keys and values ({', '.join(others)}), which "
            "addresses do not reach: only decoders with one self-attention in every layer can be attached to"
        )
    return cache


# --- what they show ---


def _shares(calls: dict[int, Seen]) -> dict[int, int]:
    """By the index of a layer that gets the keys of another, the index of that one."""
    first: dict[int, int] = {}
    owner = {index: first.setdefault(id(calls[index].key), index) for index in sorted(calls)}
    return {index: other for index, other in owner.items() if index != other}


def _refuse_changed_keys(model: PreTrainedModel, cache: DynamicCache, keys: dict[int, Tensor]) -> None:
    refuse_unless_finite(model, list(keys.values()))
    for index, key in keys.items():
        held = getattr(cache.layers[index], "keys", None) if index < len(cache.layers) else None
        if held is None or held.shape != key.shape or not torch.equal(held, key):
            raise InputError(
                f"layer {index} of {type(model).__name__} changes its keys after they were cached, or keeps them "
                "elsewhere: those in the cache cannot be given an address"
            )


def _rotary_of_layer(
    seen: dict[int, Seen], sources: list[Source], model: PreTrainedModel, index: int
) -> LayerRotary | None:
    """How the layer rotates its keys and queries; None: not at all."""
    name = type(model).__name__
    keys = {p: call.key[:, :, 0] for p, call in seen.items()}
    queries = {p: call.query[:, :, 0] for p, call in seen.items()}
    refuse_unless_finite(model, [*keys.values(), *queries.values()])
    if not bool(keys[0].any()):
        raise InputError(f"all keys of layer {index} are zero, which hides how they rotate: load the weights first")
    if stands_still(keys) and stands_still(queries):
        return None
    marked = seen[1].cos_sin
    if marked is None or len(marked) != 2:
        raise InputError(
            f"layer {index} of {name} rotates its keys, but not by cosines and sines that it is handed as "
            "position_embeddings: its rotary embedding cannot be followed"
        )
    cos, sin = (x[0, 0] for x in marked.wide)
    if cos.dtype.itemsize < 4:
        raise InputError(
            f"{name} rounds its cosines and sines to {cos.dtype}, which hides its frequencies; load it with "
            "dtype=torch.float32"
        )
    angles = torch.atan2(sin.double(), cos.double()).cpu()
    rotary = rotary_of(keys, angles, sources)
    if rotary is None or rotary_of(queries, angles, sources) is None:
        raise InputError(
            f"layer {index} of {name} rotates its keys in planes that are not known here; known are half-split and "
            "interleaved pairs at the beginning of a head, rotating either way"
        )
    return rotary


def refuse_unless_finite(model: PreTrainedModel, seen: list[Tensor]) -> None:
    """Refuse outputs that are NaN or infinite, and name the weights that make them so."""
    if all(bool(torch.isfinite(x).all()) for x in seen):
        return
    held = (*model.named_parameters(), *model.named_buffers())
    broken = [name for name, x in held if x.is_floating_point() and not bool(torch.isfinite(x).all())]
    name = type(model).__name__
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(f"{broken[0]}{more} of {name} holds NaN or infinite numbers: load weights that are whole")
    raise InputError(
        f"{name} computes NaN or infinite numbers from finite weights in {seen[0].dtype}: load it in a wider dtype"
    )


def _kind_of_mask(model: PreTrainedModel, index: int, options: dict[str, Any]) -> tuple[str, int | None]:
    """Kind and window, from the call or else from the configuration."""
    config = model.config.get_text_config()
    window = options.get("sliding_window")
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return "full_attention", window or getattr(config, "sliding_window", None)
    sliding = kinds[index] == "sliding_attention"
    return kinds[index], window or (config.sliding_window if sliding else None)


def _is_plain(call: Seen, tokens: Tensor) -> bool:
    """Whether the reference gives the same; not with a mask that does more than hide."""
    mask = call.mask
    if any(call.options.get(name) is not None for name in NEEDS_ITS_OWN):
        return False
    if mask is not None and mask.is_floating_point():
        weighs = (mask != 0) & (mask > torch.finfo(mask.dtype).min / 2)
        if bool(weighs.any()):
            return False
    rule = PairRule.among(segment(tokens[None], FixedLength(len(tokens) + 1)))
    scale = call.options.get("scaling") or call.query.shape[-1] ** -0.5
    reference = backend_function("reference", call.query)
    plain = reference(States(call.query, call.key, call.key, call.value), rule, scale=scale).transpose(1, 2)
    size = call.out.double().abs().max()
    return bool((plain.double() - call.out.double()).abs().max() <= 0.02 * size)
