"""What is found out about a model when it is attached to: how each layer turns, and what its attention does besides."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel

from contentrope.attention import PairRule, backend_function
from contentrope.errors import InputError
from contentrope.hf.attention import mask_of, own_attention
from contentrope.hf.rotary import Angles, Source, Turning, sources_of, stands_still, turning_of
from contentrope.hf.state import KINDS
from contentrope.units import FixedLength, segment

POSITIONS = (0, 1, 5)
NEEDS_ITS_OWN = ("softcap", "s_aux", "position_bias")
"""Options of an attention call that change scores or weights: soft-capping, sinks, biases."""


KEYWORD_ALONG = "contentrope_along"
KINDS_OF_MASK = ("full_attention", "sliding_attention")


class Layer(NamedTuple):
    layer_idx: int
    turning: int | None
    """Which of the model's turnings; None: the layer has no positions, so addresses cannot be told to it."""
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
    turnings: list[Turning]
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
    turns: _Marked | None
    options: dict[str, Any]
    out: Tensor
    reached: bool
    """Whether a keyword argument of the decoder has come through."""


@dataclass
class Probe:
    """Stands in for the attention function and remembers how it was called."""

    own: str
    calls: list[Seen] = field(default_factory=list)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        turns, reached = options.pop("contentrope", None), options.pop(KEYWORD_ALONG, False)
        out = own_attention(module, self.own)(module, query, key, value, attention_mask, **options)
        self.calls.append(Seen(module, query, key, value, attention_mask, turns, options, out[0], reached))
        return out

    def take(self) -> list[Seen]:
        calls, self.calls = self.calls, []
        return calls


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
def probing(model: PreTrainedModel, decoder: nn.Module, own: str) -> Iterator[Probe]:
    """While it lasts, all attention of the model goes through a probe."""
    probe = Probe(own)
    AttentionInterface.register("contentrope_probe", probe.attend)
    AttentionMaskInterface.register("contentrope_probe", partial(mask_of, own_name=own))
    handles = [
        *(m.register_forward_hook(_mark, with_kwargs=True) for m in rotary_modules(decoder)),
        *(m.register_forward_pre_hook(_pass_on, with_kwargs=True) for m in decoder.modules()),
    ]
    try:
        model.set_attn_implementation("contentrope_probe")
        with evaluating(model):
            yield probe
    finally:
        model.set_attn_implementation(own)
        for handle in handles:
            handle.remove()


class _Marked(tuple):
    """The output of a rotary embedding, told from other tuples."""

    wide: tuple[Tensor, ...]
    """The same in float32 at least."""


def _mark(module: nn.Module, args: Any, kwargs: dict[str, Any], turns: Any) -> Any:
    """Cosines and sines come in the dtype of the hidden states, rounded; asked with wider ones, a module gives more."""
    if not isinstance(turns, tuple):
        return turns
    marked = _Marked(turns)
    is_coarse = any(x.dtype.itemsize < 4 for x in turns)
    marked.wide = turns
    if is_coarse:
        marked.wide = module.forward(*map(_widened, args), **{k: _widened(x) for k, x in kwargs.items()})
    return marked


def _widened(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x


def _pass_on(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """As in an attached model: an attention module that is handed turns hands them to the attention function."""
    if hasattr(module, "layer_idx") and isinstance(turns := kwargs.get("position_embeddings"), _Marked):
        return args, {**kwargs, "contentrope": turns}
    return None


def rotary_modules(decoder: nn.Module) -> list[nn.Module]:
    return [m for m in decoder.modules() if "rotaryembedding" in type(m).__name__.lower()]


def layers_of(model: PreTrainedModel, decoder: nn.Module, own: str) -> Found:
    embedding = cast(Tensor, model.get_input_embeddings().weight)
    tokens = torch.arange(min(6, len(embedding)), device=embedding.device)
    cache = _cache_of(model)
    with probing(model, decoder, own) as probe:
        alone = {}
        for position in POSITIONS:
            told = {"past_key_values": cache, "use_cache": True} if position == 0 else {"use_cache": False}
            _ask(model, decoder, tokens[:, None], position_ids=torch.full_like(tokens[:, None], position), **told)
            alone[position] = _by_layer(probe.take(), model)
        _ask(
            model, decoder, tokens[None], use_cache=False, **({KEYWORD_ALONG: True} if _takes_keywords(decoder) else {})
        )
        together = _by_layer(probe.take(), model)
    shares = _shares(alone[0])
    _refuse_changed_keys(model, cache, {i: call.key for i, call in alone[0].items() if i not in shares})
    sources = [source for m in rotary_modules(decoder) for source in sources_of(m)]
    layers, turnings = {}, list[Turning]()
    for index in sorted(alone[0]):
        turning = _turning_of_layer({p: alone[p][index] for p in POSITIONS}, sources, model, index)
        number = None if turning is None else _number(turning, turnings)
        kind, window = _kind_of_mask(model, index, together[index].options)
        plain = kind in KINDS_OF_MASK and _is_plain(together[index], tokens)
        heads = together[index].query.shape[1]
        layers[index] = Layer(index, number, plain, window, heads, shares.get(index), index in shares.values())
    if not turnings:
        raise InputError(f"{type(model).__name__} turns none of its keys: it has no rotary positions to build on")
    modules = [call.module for call in together.values()]
    return Found(layers, turnings, modules, all(call.reached for call in together.values()))


def _takes_keywords(decoder: nn.Module) -> bool:
    parameters = inspect.signature(decoder.forward).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _ask(model: PreTrainedModel, decoder: nn.Module, ids: Tensor, **more: Any) -> None:
    try:
        decoder(input_ids=ids, **more)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be attached to: asked for a few tokens to see "
            f"how it rotates, it failed with {type(error).__name__}: {error}"
        ) from error


def _by_layer(calls: list[Seen], model: PreTrainedModel) -> dict[int, Seen]:
    name, expected = type(model).__name__, model.config.get_text_config().num_hidden_layers
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


def _shares(calls: dict[int, Seen]) -> dict[int, int]:
    """By the index of a layer that is handed the keys of another, the index of that one."""
    first: dict[int, int] = {}
    owner = {index: first.setdefault(id(calls[index].key), index) for index in sorted(calls)}
    return {index: other for index, other in owner.items() if index != other}


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


def _refuse_changed_keys(model: PreTrainedModel, cache: DynamicCache, keys: dict[int, Tensor]) -> None:
    refuse_unless_finite(model, list(keys.values()))
    for index, key in keys.items():
        held = getattr(cache.layers[index], "keys", None) if index < len(cache.layers) else None
        if held is None or held.shape != key.shape or not torch.equal(held, key):
            raise InputError(
                f"layer {index} of {type(model).__name__} changes its keys after they were cached, or keeps them "
                "elsewhere: those in the cache cannot be given an address"
            )


def _turning_of_layer(
    seen: dict[int, Seen], sources: list[Source], model: PreTrainedModel, index: int
) -> Turning | None:
    keys = {p: call.key[:, :, 0] for p, call in seen.items()}
    queries = {p: call.query[:, :, 0] for p, call in seen.items()}
    refuse_unless_finite(model, [*keys.values(), *queries.values()])
    if not bool(keys[0].any()):
        raise InputError(f"all keys of layer {index} are zero, which hides how they turn: load the weights first")
    if stands_still(keys) and stands_still(queries):
        return None
    turns = seen[1].turns
    if turns is None or len(turns) != 2:
        raise InputError(
            f"layer {index} of {type(model).__name__} turns its keys, but not by cosines and sines that it is handed "
            "as position_embeddings: its rotary embedding cannot be followed"
        )
    angles = Angles(*(x[0, 0] for x in turns.wide))
    if angles.cos.dtype.itemsize < 4:
        raise InputError(
            f"{type(model).__name__} rounds its cosines and sines to {angles.cos.dtype}, which hides its frequencies; "
            "load it with dtype=torch.float32"
        )
    turning = turning_of(keys, angles, sources)
    if turning is None or turning_of(queries, angles, sources) is None:
        raise InputError(
            f"layer {index} of {type(model).__name__} turns its keys in planes that are not known here; known are "
            "half-split and interleaved pairs at the beginning of a head, turning either way"
        )
    return turning


def refuse_unless_finite(model: PreTrainedModel, seen: list[Tensor]) -> None:
    """What a model computes; if some of it is no number, the weights are looked through for the reason."""
    if all(bool(torch.isfinite(x).all()) for x in seen):
        return
    held = (*model.named_parameters(), *model.named_buffers())
    broken = [name for name, x in held if x.is_floating_point() and not bool(torch.isfinite(x).all())]
    name, dtype = type(model).__name__, seen[0].dtype
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(f"{broken[0]}{more} of {name} holds NaN or infinite numbers: load weights that are whole")
    raise InputError(
        f"{name} computes NaN or infinite numbers from finite weights in {dtype}: load it in a wider dtype"
    )


def _number(turning: Turning, turnings: list[Turning]) -> int:
    for number, known in enumerate(turnings):
        if known.same_as(turning):
            return number
    turnings.append(turning)
    return len(turnings) - 1


def _kind_of_mask(model: PreTrainedModel, index: int, options: dict[str, Any]) -> tuple[str, int | None]:
    """Told by the call, or else by the configuration."""
    config = model.config.get_text_config()
    window = options.get("sliding_window")
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return "full_attention", window or getattr(config, "sliding_window", None)
    sliding = kinds[index] == "sliding_attention"
    return kinds[index], window or (config.sliding_window if sliding else None)


def _is_plain(call: Seen, tokens: Tensor) -> bool:
    if any(call.options.get(name) is not None for name in NEEDS_ITS_OWN) or _weighs(call.mask):
        return False
    rule = PairRule.among(segment(tokens[None], FixedLength(len(tokens) + 1)))
    scale = call.options.get("scaling") or call.query.shape[-1] ** -0.5
    reference = backend_function("reference", call.query, dropout=0.0, cached=False)
    plain = reference(call.query, call.key, call.key, call.value, rule, scale=scale).transpose(1, 2)
    size = call.out.double().abs().max()
    return bool((plain.double() - call.out.double()).abs().max() <= 0.02 * size)


def _weighs(mask: Tensor | None) -> bool:
    """Whether it does more than hide."""
    if mask is None or not mask.is_floating_point():
        return False
    return bool(((mask != 0) & (mask > torch.finfo(mask.dtype).min / 2)).any())
