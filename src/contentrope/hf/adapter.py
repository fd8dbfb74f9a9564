"""Hooks on a decoder, its rotary embedding and its attention modules. No model code is changed."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from contentrope.address import ContentAddress
from contentrope.attention import backend_name, fused
from contentrope.errors import BackendError, CheckpointError, InputError
from contentrope.hf.addresses import NAME, Addresses
from contentrope.hf.attention import KEYWORD, Call, Carried, Read, name_of, own_attention
from contentrope.hf.frame import Frame, check_cache, frame_of, ids_of, padding_of, refuse_packed, unread, widen
from contentrope.hf.probe import layers_of, rotary_modules
from contentrope.hf.reading import Text
from contentrope.hf.rotary import EXACT_UP_TO, LayerRotary, Listed, exact_beyond, listings
from contentrope.hf.state import columns_layer
from contentrope.rotary import at_least_float32
from contentrope.units import Segmenter, describe

HOME = "_contentrope"
"""Attribute of the decoder under which its adapter is found."""


class Adapter:
    """Segmenter, settings and hooks of an attached model. The trained part is a module of the model's own."""

    def __init__(
        self,
        model: PreTrainedModel,
        segmenter: Segmenter,
        *,
        gate: float,
        backend: str,
        competition: float,
        learn_competition: bool,
        window: int = 0,
    ) -> None:
        self.model = model
        self.decoder: nn.Module = model.base_model
        self.segmenter = segmenter
        self.gate = gate
        self.backend = backend
        self.competition = competition
        self.learn_competition = learn_competition
        self.window = window
        self.own: str = model.config._attn_implementation
        self.layers, self.rotaries, self.attention, self.hands_on_keywords = layers_of(model, self.decoder, self.own)
        self.own_attention = own_attention(self.attention[0], self.own)
        self.handles: list[Any] = []
        self.look: Callable[[int, Frame, Tensor, Read], None] | None = None
        """Called with every layer's attention while someone looks inside."""
        # Saved with addresses and loaded without them, by transformers.
        self.missing = bool(model.name_or_path) and hasattr(model.config, NAME)
        self.disable_compile: bool | None = None
        # From the decoder's hook to the rotary embedding's, within one call of one thread.
        self.running: dict[int, Frame] = {}
        self.listed: dict[nn.Module, dict[str | None, Listed]] = {}
        """With a near window, what each rotary module hands out: far into a text its angles are made anew."""
        keeping = {index: layer.rotary for index, layer in self.layers.items() if layer.shares is None}
        self.keeping = len(keeping)
        """How many layers keep keys in a cache."""
        self.rotary_by_layer = {index: (n, self.rotaries[n]) for index, n in keeping.items() if n is not None}
        """Its number and itself, for layers that have positions and keys of their own."""

    @property
    def addresses(self) -> Any:
        """The :class:`Addresses`. Looked up at every call: PEFT puts a wrapper in their place."""
        return getattr(self.model, NAME)

    @property
    def trained(self) -> nn.Module:
        """The module that holds the weights: under PEFT, the copy that is trained."""
        copies = getattr(self.addresses, "modules_to_save", None)
        return cast(nn.Module, self.addresses if copies is None else copies[self.addresses.active_adapters[0]])

    @property
    def embedding(self) -> Tensor:
        return cast(Tensor, self.model.get_input_embeddings().weight)

    def embed(self, ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq dim"]:
        return cast(Tensor, self.model.get_input_embeddings()(ids))

    def settings(self) -> dict[str, Any]:
        """What saved weights and a model must agree on; "turnings" are the model's rotaries."""
        return {
            "hidden_size": self.model.config.get_text_config().hidden_size,
            "layers": {str(index): layer.rotary for index, layer in self.layers.items()},
            "turnings": {str(n): rotary.describe() for n, rotary in enumerate(self.rotaries)},
            "units": describe(self.segmenter.rule),
            "max_length": self.segmenter.max_length,
            "reader": list(self.segmenter.reader.ids),
            "learn_competition": self.learn_competition,
            "competition": self.competition,
            "gate": self.gate,
            "window": self.window,
        }

    def set(self, *, gate: float | None = None, competition: float | None = None) -> None:
        """Written to the configuration too, which is saved with a model: so one saved with addresses is recognised."""
        self.gate = self.gate if gate is None else gate
        self.competition = self.competition if competition is None else competition
        setattr(self.model.config, NAME, self.settings())

    def exponents(self) -> Tensor | None:
        """What the competition is learned from: one number for each layer and query head."""
        if not self.learn_competition:
            return None
        heads = {layer.heads for layer in self.layers.values()}
        if len(heads) > 1:
            raise InputError(
                f"layers of this model have {sorted(heads)} query heads; learn_competition needs one number"
            )
        return torch.full((len(self.layers), heads.pop()), self.competition)

    def by_kernel(self) -> tuple[LayerRotary, ...]:
        """The rotaries of the model, if one kernel can rotate its queries and keys."""
        weight = self.embedding
        named = backend_name(self.backend, weight, max(rotary.head_dim for rotary in self.rotaries)) == "fused"
        has_kernel = named and weight.dtype != torch.float64 and fused.runs_on(weight.device)
        return tuple(self.rotaries) if has_kernel else ()

    def hook(self) -> None:
        weight, rotaries = self.embedding, rotary_modules(self.decoder)
        addresses = Addresses(self.rotaries, weight.shape[1], self.segmenter.max_length, self.exponents())
        self.model.add_module(NAME, addresses.to(weight.device, at_least_float32(weight.dtype)))
        self.set()
        setattr(self.decoder, HOME, self)
        self.handles = [
            self.decoder.register_forward_pre_hook(self.begin, with_kwargs=True),
            self.decoder.register_forward_hook(self.finish, with_kwargs=True, always_call=True),
            *(m.register_forward_pre_hook(self.place, with_kwargs=True) for m in rotaries),
        ]
        if self.window:
            with torch.no_grad():
                self.listed = {m: listings(m, self.rotaries, weight) for m in rotaries}
            self.handles += [m.register_forward_hook(self.refine, with_kwargs=True) for m in rotaries]
        for module in self.attention:
            module.reads_addresses = True  # type: ignore[assignment]
        if not self.hands_on_keywords:
            self.handles += [m.register_forward_hook(self.carry) for m in rotaries]
            self.handles += [m.register_forward_pre_hook(self.pass_on, with_kwargs=True) for m in self.attention]
        reads = [m for m in self.attention if "position_ids" in inspect.signature(m.forward).parameters]
        self.handles += [m.register_forward_pre_hook(self.place_memory, with_kwargs=True) for m in reads]
        self.model.set_attn_implementation(name_of(self.own))
        if (generation := getattr(self.model, "generation_config", None)) is not None:
            # With a static cache on a GPU ``generate`` compiles by itself; columns that grow would be recompiled.
            self.disable_compile = generation.disable_compile
            generation.disable_compile = True

    def unhook(self) -> None:
        for handle in self.handles:
            handle.remove()
        for module in self.attention:
            del module.reads_addresses
        delattr(self.decoder, HOME)
        delattr(self.model, NAME)
        if hasattr(self.model.config, NAME):
            delattr(self.model.config, NAME)
        self.model.set_attn_implementation(self.own)
        if (generation := getattr(self.model, "generation_config", None)) is not None:
            generation.disable_compile = self.disable_compile

    # --- the hooks, in the order in which a call meets them ---

    def begin(self, decoder: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Before the decoder: the frame of the call, from its ids, padding and cache."""
        ids, kwargs = ids_of(args, kwargs)
        cache = kwargs["past_key_values"] = self._cache(kwargs)
        ends, memory = kwargs.pop("unit_ends", None), kwargs.pop("unit_memory", None)
        store = None if cache is None else columns_layer(cache, self.keeping, self.rotary_by_layer)
        widen(cache, None if store is None else store.columns, len(ids))
        ids, kwargs = unread(ids, kwargs, store)
        if cache is not None and store is not None:
            check_cache(cache, store.columns, ids)
        offset = 0 if store is None else store.get_seq_length()
        self._refuse_what_would_be_lost(begins=not offset)
        valid, plain = padding_of(kwargs.get("attention_mask"), ids, offset)
        refuse_packed(kwargs, cache)
        text = Text(ids, valid, ends, kwargs.get("position_ids"), memory)
        frame = frame_of(self, text, store, plain_mask=plain)
        self._warn_if_frozen(frame)
        self.running[_thread()] = frame
        if self.hands_on_keywords:
            kwargs[KEYWORD] = Call(self, frame)
        return (), {**kwargs, "input_ids": ids}

    def place(self, rotary: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Before the rotary embedding: positions between global and local."""
        frame = self.running[_thread()]
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": frame.positions(kwargs["position_ids"], self.gate)}
        hidden, positions, *rest = args
        return (hidden, frame.positions(positions, self.gate), *rest), kwargs

    def refine(self, rotary: nn.Module, args: Any, kwargs: dict[str, Any], cos_sin: Any) -> Any:
        """After the rotary embedding, with a near window, whose positions grow with the text: angles that are exact."""
        frame, first = self.running[_thread()], max(self.window, EXACT_UP_TO)
        kind = kwargs.get("layer_type", args[2] if len(args) > 2 else None)
        listed = self.listed[rotary].get(kind)
        if listed is None or frame.total <= first:
            return cos_sin
        positions = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
        frequency = listed.by_channel(self.addresses.frequencies[listed.number][0])
        return exact_beyond(first, cos_sin, positions, frequency, listed.amplitude)

    def carry(self, rotary: nn.Module, args: Any, cos_sin: tuple[Tensor, ...]) -> Carried:
        """After the rotary embedding: its result takes the frame along, to every layer."""
        return Carried(cos_sin, Call(self, self.running[_thread()]))

    def pass_on(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Before an attention module: the state of the call goes on to the attention function."""
        cos_sin = kwargs.get("position_embeddings")
        return args, {**kwargs, KEYWORD: cos_sin.call if isinstance(cos_sin, Carried) else None}

    def place_memory(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Before an attention module that scales its queries by how much text lies before them: before a memory unit,
        which sees only itself, there is none."""
        call, given = kwargs.get(KEYWORD), kwargs.get("position_ids")
        if call is None or given is None or call.frame.rule.query_memory is None:
            return args, kwargs
        alone = call.frame.positions(given, self.gate)
        return args, {**kwargs, "position_ids": torch.where(call.frame.rule.query_memory, alone, given)}

    def finish(self, decoder: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """After the decoder: the cache accepts the call, unless it failed."""
        frame = self.running.pop(_thread(), None)
        if frame is not None and output is not None:
            frame.commit()

    def _cache(self, kwargs: Mapping[str, Any]) -> Cache | None:
        """The cache of the call, made here where the decoder would make one of its own."""
        given = kwargs.get("past_key_values")
        if given is not None:
            return given
        wanted, config = kwargs.get("use_cache"), self.model.config.get_text_config()
        wanted = getattr(config, "use_cache", False) if wanted is None else wanted
        recomputes = getattr(self.decoder, "gradient_checkpointing", False) and self.decoder.training
        return DynamicCache(config=config) if wanted and not recomputes else None

    def _refuse_what_would_be_lost(self, *, begins: bool) -> None:
        """Most checks run when a text begins, not at every decoded token."""
        if (found := self.model.config._attn_implementation) != name_of(self.own):
            raise BackendError(
                f"the model's attention was set to {found!r}, which knows no addresses; "
                "detach before changing it, and share no configuration between models"
            )
        if not begins:
            return
        if self.missing:
            raise CheckpointError(
                f"{self.model.name_or_path} was saved with addresses, which from_pretrained leaves out; "
                "load them with contentrope.hf.load(model, folder)"
            )
        if not all(type(cast(ContentAddress, m).project) is nn.Linear for m in self.addresses.by_turning):
            raise InputError(
                f"something was put in place of the weights of {NAME!r}; with PEFT, list it in modules_to_save"
            )
        if torch.is_grad_enabled() and self._checkpoints_reentrantly():
            raise InputError(
                "with use_reentrant=True gradient checkpointing loses the gradient of addresses; call "
                "gradient_checkpointing_enable() without it"
            )

    def _checkpoints_reentrantly(self) -> bool:
        """Whether layers are recomputed with gradients through their first input alone."""
        if not (self.decoder.training and getattr(self.decoder, "gradient_checkpointing", False)):
            return False
        functions = (getattr(m, "_gradient_checkpointing_func", None) for m in self.decoder.modules())
        return any(getattr(f, "keywords", {}).get("use_reentrant", False) for f in functions)

    def _warn_if_frozen(self, frame: Frame) -> None:
        learns = frame.zero and self.decoder.training and torch.is_grad_enabled()
        if learns and not any(p.requires_grad for p in self.trained.parameters()):
            warnings.warn(
                f"the addresses are zero and frozen, so they stay zero; with PEFT, pass modules_to_save=['{NAME}']",
                stacklevel=2,
            )


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def adapter_of(model: nn.Module) -> Adapter:
    for module in model.modules():
        if HOME in vars(module):
            return cast(Adapter, vars(module)[HOME])
    raise InputError(f"this {type(model).__name__} has no addresses: call contentrope.hf.attach(model, ...) first")
