"""Attaching to a model, detaching, and the gate between its positions and ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from contentrope.attention import BACKENDS
from contentrope.attention.api import check_window
from contentrope.errors import InputError
from contentrope.hf.adapter import HOME, Adapter, adapter_of
from contentrope.hf.addresses import NAME
from contentrope.hf.attention import OWN, register
from contentrope.hf.check import Check
from contentrope.hf.probe import evaluating, rotary_modules
from contentrope.hf.units import reader_of, rule_of
from contentrope.units import Rule, Segmenter


def attach(
    model: PreTrainedModel,
    tokenizer: Any = None,
    *,
    units: str | int | Rule | Iterable[int] = "line",
    window: int = 0,
    positions: str | float = "local",
    max_length: int = 256,
    marker: str | None = None,
    competition: float = 0.0,
    learn_competition: bool = False,
    reader: str | Iterable[int] = (),
    backend: str = "auto",
    check: bool = True,
) -> PreTrainedModel:
    """Give every completed unit of the text an address in all attention layers of ``model``, in place.

    ``units``: a kind of text, read by the ``tokenizer`` ("line", "sentence", "paragraph", "record", "document", the
    last two by a ``marker``), a number of tokens, the token ids that end a unit, or a rule. A unit ends after
    ``max_length`` tokens at the latest. A call may give its own ends: ``model(input_ids, unit_ends=mask)``.

    ``window``: units that began at most so many tokens before the one that is read are seen as by the untouched model,
    at its own positions; only what lies further back is read at its address. A text of at most ``window`` tokens is
    read as if nothing had been attached, to the last bit. 0: the own unit alone is near, and ``positions`` say where.

    ``positions``: "global" leaves a model as it is until its addresses are trained, "local" counts inside each unit;
    a number between 1 (global) and 0 (local) interpolates; see :func:`set_positions`.

    ``competition``: the exponent alpha by which the number of completed units counts against them: 0 as in the paper,
    1 weighs the open unit against the average earlier one. ``learn_competition``: alpha is learned for each layer and
    head, from there on. It holds in all layers that have positions.

    ``reader``: token ids, or a text that tokens contain. Units that begin before the first of them in a row are memory:
    they see only themselves, so their order means nothing to those that read them.

    ``check``: before it is returned, the model is checked on a few tokens (:mod:`contentrope.hf.check`); a failure is
    an error and leaves the model as it was. False: no check.

    >>> import torch, transformers
    >>> sizes = dict(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    >>> ids = torch.tensor([[5, 6, 0, 7, 8]])
    >>> untouched = model(ids).logits
    >>> model = attach(model, units={0}, positions="global")
    >>> torch.equal(model(ids).logits, untouched)
    True
    >>> [name for name, _ in model.contentrope.named_parameters()][-2:]
    ['by_turning.0.project.weight', 'by_turning.0.project.bias']
    """
    _refuse_if_unfit(model, backend)
    if isinstance(competition, bool) or not isinstance(competition, int | float) or not math.isfinite(competition):
        raise InputError(f"competition is {competition!r}: pass a number, 0 for none")
    check_window(window)
    gate = gate_of(positions)
    if window and gate:
        raise InputError(f"positions is {positions!r}: with window={window} they are the model's own; leave them out")
    register()
    embedding = cast(Tensor, model.get_input_embeddings().weight)
    rule = rule_of(units, tokenizer, marker, vocabulary_size=len(embedding))
    segmenter = Segmenter(rule, max_length=max_length, reader=reader_of(reader, tokenizer))
    with _random_numbers_restored_on_failure(embedding.device):
        adapter = Adapter(
            model,
            segmenter,
            gate=gate,
            window=window,
            backend=backend,
            competition=float(competition),
            learn_competition=learn_competition,
        )
        fixed = _fixed_positions(adapter)
        if window and fixed < math.inf:
            raise InputError(
                f"the frequencies of {type(model).__name__} change beyond position {fixed} of a text, and within a "
                f"window positions count the whole text; pass window=0 instead of window={window}"
            )
        if max_length > fixed:
            raise InputError(
                f"max_length {max_length} goes beyond the {fixed} positions up to which the frequencies of this model "
                f"are fixed; pass max_length={fixed} or less"
            )
        _hook(adapter, check, fixed)
    return model


@contextmanager
def _random_numbers_restored_on_failure(device: torch.device) -> Iterator[None]:
    cpu, gpu = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    except BaseException:
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)
        raise


def _hook(adapter: Adapter, check: bool, fixed_positions: int | float) -> None:
    if not check:
        return adapter.hook()
    known = getattr(adapter.model.config, "max_position_embeddings", None) or math.inf
    with evaluating(adapter.model):
        checked = Check(adapter, min(known, fixed_positions))
        adapter.hook()
        try:
            checked()
        except BaseException:
            adapter.unhook()
            raise


def detach(model: nn.Module) -> nn.Module:
    """Undo :func:`attach`: the model computes what it did before, and its addresses are gone."""
    adapter_of(model).unhook()
    return model


def set_positions(model: nn.Module, positions: str | float) -> None:
    """Move the gate between global (1) and local (0) positions, as fine-tuning may do step by step."""
    adapter, gate = adapter_of(model), gate_of(positions)
    if adapter.window and gate:
        raise InputError(f"positions is {positions!r}: with window={adapter.window} they are the model's own")
    adapter.set(gate=gate)


def gate_of(positions: str | float) -> float:
    """
    >>> gate_of("global"), gate_of("local"), gate_of(0.25)
    (1.0, 0.0, 0.25)
    """
    named = {"global": 1.0, "local": 0.0}
    if isinstance(positions, str) and positions in named:
        return named[positions]
    if isinstance(positions, int | float) and not isinstance(positions, bool) and 0.0 <= positions <= 1.0:
        return float(positions)
    raise InputError(f"positions is {positions!r}: pass 'global', 'local' or a number between 0 (local) and 1 (global)")


def _refuse_if_unfit(model: Any, backend: str) -> None:
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"{type(model).__name__} is no transformers model; attach before wrapping it (PEFT, DDP)")
    if getattr(model, "peft_config", None):
        raise InputError(
            "this model holds a PEFT adapter, loaded or made without addresses; attach to the model first, then to it "
            f"the adapter, with modules_to_save=[{NAME!r}]"
        )
    if backend != "auto" and backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}; choose auto, {', '.join(BACKENDS)}")
    if HOME in vars(model.base_model):
        raise InputError("this model has addresses already: call contentrope.hf.detach(model) first")
    name = type(model).__name__
    if not model._can_set_attn_implementation():
        raise InputError(f"{name} does not call its attention through transformers' AttentionInterface")
    if not rotary_modules(model.base_model):
        raise InputError(f"{name} has no rotary embedding module, so no rotary positions to build on")
    if model.config.get_text_config() is not model.config:
        raise InputError(f"{name} reads more than text; attach to a model of text alone")
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        raise InputError(f"{name} is split over devices, which the state of a call does not follow; load it on one")
    if any(weight.is_meta for weight in model.parameters()):
        raise InputError(f"{name} has weights on the meta device, so it cannot show how it rotates; load them first")
    if any(isinstance(weight, DTensor) for weight in model.parameters()):
        raise InputError(f"the weights of {name} are spread over processes; attach first, then spread the model")
    if (own := model.config._attn_implementation) not in OWN:
        raise InputError(
            f"{name} uses attention {own!r}, which cannot be given addresses; "
            f"call model.set_attn_implementation() with {' or '.join(map(repr, OWN))} first"
        )
    if not getattr(model.config, "is_causal", True) or getattr(model.config, "use_bidirectional_attention", False):
        raise InputError(f"{name} reads in both directions; addresses are for causal decoders")


def _fixed_positions(adapter: Adapter) -> int | float:
    """The positions up to which frequencies are fixed: those of some models depend on the largest position."""
    fixed = [math.inf]
    rope = getattr(adapter.model.config, "rope_parameters", None) or {}
    settings = [rope, *(kind for kind in rope.values() if isinstance(kind, Mapping))]
    named = [s["original_max_position_embeddings"] for s in settings if s.get("original_max_position_embeddings")]
    for rotary in rotary_modules(adapter.decoder):
        kinds = getattr(rotary, "rope_type", "")
        kinds = kinds.values() if isinstance(kinds, Mapping) else (kinds,)
        if {"dynamic", "longrope"}.intersection(kinds):
            fixed += [*named, cast(int, rotary.original_max_seq_len)]
    return min(fixed)
