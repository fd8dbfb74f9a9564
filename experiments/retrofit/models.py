"""The models of the experiment: the original, trained here once per seed or given, and what it is converted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import contentrope.hf as chf
from contentrope.config import differences
from contentrope.errors import CheckpointError, InputError
from contentrope.files import require_own, write_folder
from contentrope.hf.addresses import NAME
from contentrope.hf.finetune import CausalLM, units_named, with_lora
from contentrope.hf.plain import config_of, load_model, quiet
from contentrope.results import read_json, write_json
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, train
from contentrope.training import checkpoint as checkpoints
from contentrope.training.metrics import METRICS
from contentrope.training.seeds import seeded
from contentrope.units import Segmenter
from experiments.models import stepper_for, training_facts
from experiments.retrofit.config import Addresses, Rescaling, RetrofitConfig, parse_conversion

FACTS = "training.json"
"""What the training of an original took; written last, so that a folder that has it is complete."""
LONG = 0.99
"""Share of units that are no longer than what counts as a long one."""
SAMPLE = 2**18
"""Tokens in which to look for it."""

# --- originals -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pretraining:
    """All that decides what the originals become, and where they lie."""

    config: RetrofitConfig
    tokenizer: Any
    batches: Batches
    corpus: dict[str, Any]
    out: Path

    def folder(self, seed: int) -> Path:
        return self.out / "originals" / f"seed-{seed}"

    def settings(self) -> dict[str, Any]:
        training = {**asdict(self.config.pretraining), "seed": None}
        about = {"size": asdict(self.config.size), "length": self.config.length, "pretraining": training}
        return {**about, "corpus": self.corpus, "symbols": len(self.tokenizer)}


def train_originals(plan: Pretraining, seeds: list[int], device: str, tell: Callable[[int, StepReport], None]) -> None:
    """Train what is missing. Of several processes each takes another seed, then waits for the others'."""
    from filelock import FileLock, Timeout

    (plan.out / "originals").mkdir(parents=True, exist_ok=True)
    locks = {seed: FileLock(plan.out / "originals" / f".seed-{seed}.lock") for seed in seeds}
    stepper: Stepper | None = None
    for patience in (0.0, -1.0):  # what nobody is at, then what somebody was at
        for seed, lock in locks.items():
            try:
                with lock.acquire(timeout=patience):
                    if not _is_there(plan, seed):
                        stepper = _train(plan, seed, device, stepper, partial(tell, seed))
            except Timeout:
                continue


def _is_there(plan: Pretraining, seed: int) -> bool:
    """Whether an original is finished; refused if it is another one."""
    facts = plan.folder(seed) / "model" / FACTS
    if not facts.exists():
        return False
    unlike = differences(plan.settings(), read_json(facts).get("settings", {}))
    if unlike:
        raise CheckpointError(f"{facts.parent} is another original ({'; '.join(unlike)}); choose another folder")
    return True


def _train(
    plan: Pretraining, seed: int, device: str, stepper: Stepper | None, tell: Callable[[StepReport], None]
) -> Stepper:
    folder = plan.folder(seed)
    require_own(folder / "model", folder / METRICS)
    fresh = fresh_original(plan.config, seed, len(plan.tokenizer)).to(device)
    stepper = stepper_for(seed, fresh, plan.config.pretraining, stepper)
    metrics, settings = MetricsLog(folder), plan.settings()
    last = train(
        stepper, plan.batches, checkpoint=folder / "checkpoint", on_step=tell, settings=settings, metrics=metrics
    )
    save_plain(stepper.model.model, plan.tokenizer, folder / "model")
    write_json(folder / "model" / FACTS, {"settings": settings, **training_facts(last, stepper)})
    checkpoints.drop(folder / "checkpoint")
    return stepper


def fresh_original(config: RetrofitConfig, seed: int, symbols: int) -> CausalLM:
    """A model with the initialisation of ``seed``, which is the same on every device."""
    size = config.size
    settings = LlamaConfig(
        vocab_size=symbols,
        hidden_size=size.dim,
        intermediate_size=32 * round(size.dim / 12),
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=config.length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=True,
    )
    with seeded(seed):
        model = LlamaForCausalLM(settings)
    add_dropout(model, size.dropout)
    return CausalLM(model)


def add_dropout(model: Any, rate: float) -> None:
    """Dropout on what attention and feed-forward of every layer add; Llama has none of its own there."""
    if not rate:
        return
    for layer in model.base_model.layers:
        layer.self_attn.register_forward_hook(
            lambda module, args, out: (F.dropout(out[0], rate, module.training), *out[1:])
        )
        layer.mlp.register_forward_hook(lambda module, args, out: F.dropout(out, rate, module.training))


def save_plain(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write an ordinary checkpoint."""

    def write(place: Path) -> None:
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)

    with quiet():
        write_folder(folder, write)


# --- conversions ---------------------------------------------------------------------------------------------------


def converted(
    config: RetrofitConfig, variant: str, original: str, tokenizer: Any, text: Int[Tensor, "tokens"], device: str
) -> CausalLM:
    """The model at ``original`` (a folder or hub name) as ``variant`` begins its training on ``text``."""
    options = parse_conversion(variant)
    model = load_model(original, rope=rescaled(variant, config_of(original), config.length), device=device)
    if config.model is None:
        add_dropout(model, config.size.dropout)
    if not isinstance(options, Addresses):
        return CausalLM(model)
    units = {"units": units_named(config.units), "marker": config.marker, "max_length": config.longest_unit}
    return with_addresses(model, tokenizer, options, text, **units)


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
    if options.train in ("addresses", "nothing"):
        model.requires_grad_(False)
        getattr(model, NAME).requires_grad_(options.train == "addresses")
    return CausalLM(with_lora(model, options.rank) if options.train == "lora" else model)


def long_unit(segmenter: Segmenter, text: Int[Tensor, "tokens"]) -> int:
    """Tokens of a long unit of the text."""
    units, _ = segmenter.advance(segmenter.initial(1), text[None, :SAMPLE].cpu())
    lengths = units.local[units.closes] + 1
    return int(lengths.float().quantile(LONG)) if len(lengths) else segmenter.max_length
