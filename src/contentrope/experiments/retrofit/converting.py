"""From the original to a variant of it, ready to be trained or read."""

from __future__ import annotations

from typing import Any

from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.experiments.retrofit.config import RetrofitConfig
from contentrope.experiments.retrofit.conversions import RESCALINGS, Addresses, Conversion, parse_conversion
from contentrope.experiments.retrofit.reader import Reader, add_dropout
from contentrope.hf.plain import config_of, load_model
from contentrope.units import Segmenter

LONG = 0.99
"""Share of units that are no longer than what counts as a long one."""
SAMPLE = 2**18
"""Tokens in which to look for it."""


def converted(
    config: RetrofitConfig, variant: str, original: str, tokenizer: Any, text: Int[Tensor, "tokens"], device: str
) -> Reader:
    """The model at ``original`` (a folder or hub name) as ``variant`` begins its training on ``text``."""
    conversion = parse_conversion(variant)
    rope = rescaled(conversion, config_of(original), config.length)
    model = load_model(original, rope=rope, device=device)
    if config.model is None:
        add_dropout(model, config.size.dropout)
    if conversion.addresses is None:
        return Reader(model)
    return with_addresses(
        model,
        tokenizer,
        conversion.addresses,
        text,
        units=units_named(config.units),
        marker=config.marker,
        longest_unit=config.longest_unit,
    )


def with_addresses(
    model: Any,
    tokenizer: Any,
    options: Addresses,
    text: Int[Tensor, "tokens"],
    *,
    units: str | int,
    longest_unit: int,
    marker: str | None = None,
) -> Reader:
    """Attach, and let be trained what ``options`` say. Its own gate is at local positions, where training ends."""
    import contentrope.hf as chf
    from contentrope.hf.addresses import NAME
    from contentrope.hf.probe import rotary_modules

    chf.attach(
        model,
        tokenizer,
        units=units,
        marker=marker,
        max_length=longest_unit,
        competition=options.competition,
        learn_competition=options.learn_competition,
        anchors=options.anchors,
    )
    segmenter, rotary = chf.adapter_of(model).segmenter, tuple(rotary_modules(model.base_model))
    if options.start == "back":
        chf.lie_back(model, long_unit(segmenter, text))
    if options.train in ("addresses", "nothing"):
        model.requires_grad_(False)
        getattr(model, NAME).requires_grad_(options.train == "addresses")
    elif options.train == "lora":
        from peft import LoraConfig, get_peft_model

        changes = LoraConfig(
            r=options.rank,
            lora_alpha=2 * options.rank,
            target_modules="all-linear",
            modules_to_save=[NAME],
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(model, changes)
    return Reader(model, segmenter, rotary)


def long_unit(segmenter: Segmenter, text: Int[Tensor, "tokens"]) -> int:
    """Tokens of a long unit of the text."""
    sample = text[None, :SAMPLE].cpu()
    units, _ = segmenter.advance(segmenter.initial(1), sample)
    lengths = units.local[units.closes] + 1
    return int(lengths.float().quantile(LONG)) if len(lengths) else segmenter.max_length


MOST_DIGITS = 18
"""Of a number that fits into 64 bits; a longer one names no units."""


def units_named(name: str) -> str | int:
    """
    >>> units_named("line"), units_named("64")
    ('line', 64)
    """
    return int(name) if name.isdecimal() and len(name) <= MOST_DIGITS else name


def check_units(name: str, marker: str | None, tokenizer: Any) -> None:
    """Refuse what :func:`contentrope.hf.attach` would, before anything is trained."""
    from contentrope.hf.units import rule_of

    rule_of(units_named(name), tokenizer, marker)


def rescaled(conversion: Conversion, config: Any, length: int) -> dict[str, Any] | None:
    """The rotary settings of a rescaling, in transformers' words; None: as they are."""
    scheme = conversion.scheme
    if scheme not in RESCALINGS:
        return None
    known = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" not in known:
        raise InputError(
            f"{config.model_type} has no rotary settings that hold for all its layers, so {scheme} cannot rescale "
            "them; leave it out of --variants"
        )
    if scheme == "pi":
        return {"rope_type": "linear", "factor": float(conversion.factor)}
    if scheme == "yarn":
        original = {"original_max_position_embeddings": length}
        return {"rope_type": "yarn", "factor": float(conversion.factor), **original}
    # A longer base, such that the slowest pair turns as with interpolation; transformers has its dynamic form only.
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    stretch = conversion.factor ** (head_dim / (head_dim - 2))
    return {"rope_type": "default", "rope_theta": known["rope_theta"] * stretch}
