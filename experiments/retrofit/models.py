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

from contentrope.config import differences
from contentrope.errors import CheckpointError
from contentrope.files import require_own
from contentrope.hf.finetune import CausalLM, units_named
from contentrope.hf.plain import config_of, load_model
from contentrope.results import read_json, write_json
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, train
from contentrope.training import checkpoint as checkpoints
from contentrope.training.metrics import METRICS
from contentrope.training.seeds import seeded
from experiments.conversions import Addresses, parse_conversion
from experiments.converted import rescaled, save_plain, with_addresses
from experiments.models import stepper_for, training_facts
from experiments.retrofit.config import RetrofitConfig

FACTS = "training.json"
"""What the training of an original took; written last, so that a folder that has it is complete."""

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
    named = units_named(options.units or config.units)
    units = {"units": named, "marker": config.marker, "max_length": config.longest_unit}
    return with_addresses(model, tokenizer, options, text, **units)
