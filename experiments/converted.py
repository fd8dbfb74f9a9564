"""Models as a conversion begins with them: other frequencies, or addresses of which some parts are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

import contentrope.hf as chf
from contentrope.errors import InputError
from contentrope.files import write_folder
from contentrope.hf.addresses import NAME
from contentrope.hf.finetune import CausalLM, with_lora
from contentrope.hf.plain import quiet
from contentrope.training import Batches, MetricsLog, StepReport, TrainConfig, stepper_for, train
from contentrope.units import Segmenter
from experiments.conversions import Addresses, Rescaling, parse_conversion
from experiments.models import training_facts
from experiments.random_addresses import draw_at_random

LONG = 0.99
"""Share of units that are no longer than what counts as a long one."""
SAVE_EVERY = 100
"""Steps; a run may be cut off after minutes."""
SAMPLE = 2**18
"""Tokens in which to look for it."""


def rescaled(variant: str, config: Any, length: int) -> dict[str, Any] | None:
    """The rotary settings of a rescaling, in transformers' words; None: as they are."""
    scheme, options = variant.partition(":")[0], parse_conversion(variant)
    if not isinstance(options, Rescaling):
        return None
    factor = float(options.factor)
    known = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" not in known:
        raise InputError(
            f"{config.model_type} has no rotary settings that hold for all its layers, so {scheme} cannot rescale "
            "them; leave it out of --variants"
        )
    if scheme == "pi":
        return {"rope_type": "linear", "factor": factor}
    if scheme == "yarn":
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    # A longer base, such that the slowest pair rotates as with interpolation; transformers has its dynamic form only.
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {"rope_type": "default", "rope_theta": known["rope_theta"] * factor ** (head_dim / (head_dim - 2))}


def with_addresses(
    model: Any, tokenizer: Any, options: Addresses, text: Int[Tensor, "tokens"], **units: Any
) -> CausalLM:
    """The model with addresses, of which only what the options say is trained.

    ``units`` are what :func:`contentrope.hf.attach` takes: units, marker, max_length.
    """
    same = {name: getattr(options, name) for name in ("window", "competition", "learn_competition")}
    chf.attach(model, tokenizer, **same, **units)
    if options.start == "back":
        chf.lie_back(model, long_unit(chf.adapter_of(model).segmenter, text))
    if options.address == "random":
        draw_at_random(model)
    if options.train in ("addresses", "nothing"):
        model.requires_grad_(False)
        getattr(model, NAME).requires_grad_(options.train == "addresses")
    if options.address != "content":
        getattr(model, NAME).by_turning.requires_grad_(False)
    return CausalLM(with_lora(model, options.rank) if options.train == "lora" else model)


def long_unit(segmenter: Segmenter, text: Int[Tensor, "tokens"]) -> int:
    """Tokens of a long unit of the text."""
    units, _ = segmenter.advance(segmenter.initial(1), text[None, :SAMPLE].cpu())
    lengths = units.local[units.closes] + 1
    return int(lengths.float().quantile(LONG)) if len(lengths) else segmenter.max_length


def trained_conversion(
    fresh: CausalLM,
    training: TrainConfig,
    rows: Batches,
    length: int,
    folder: Path,
    settings: Mapping[str, Any],
    hear: Callable[[StepReport], None],
) -> tuple[Any, dict[str, Any]]:
    """The Hugging Face model after its training on rows of this length, and what that took. One that was trained before
    comes from the checkpoint in its folder."""
    stepper = stepper_for(fresh, training)
    last = train(
        stepper,
        rows,
        checkpoint=folder / "checkpoint",
        on_step=hear,
        save_every=SAVE_EVERY,
        settings=settings,
        metrics=MetricsLog(folder),
    )
    facts = training_facts(last, stepper)
    facts["trained_parameters"] = sum(p.numel() for p in fresh.parameters() if p.requires_grad)
    facts["trained_tokens"] = training.steps * training.batch_size * length
    return merged(fresh.model), facts


def merged(model: Any) -> Any:
    """Without LoRA's second product, which would be computed at every token read."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def save_plain(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write an ordinary checkpoint."""

    def write(place: Path) -> None:
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)

    with quiet():
        write_folder(folder, write)
