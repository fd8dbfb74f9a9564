"""The model that is converted: trained here once per seed, in Llama's architecture, and saved as anybody's would be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from contentrope.experiments.retrofit.checkpoints import save_plain
from contentrope.experiments.retrofit.config import RetrofitConfig
from contentrope.experiments.retrofit.reader import Reader, add_dropout
from contentrope.experiments.suite import seeded
from contentrope.results import write_json
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, train

FACTS = "training.json"
"""What its training took; written last, so that a folder that has it is complete."""


def original_folder(out: Path, seed: int) -> Path:
    return out / "originals" / f"seed-{seed}"


def train_originals(
    config: RetrofitConfig,
    seeds: list[int],
    out: Path,
    device: str,
    tokenizer: Any,
    batches: Batches,
    tell: Callable[[int, StepReport], None],
) -> None:
    """Train what is missing. Of several processes each takes another seed, then waits for the others'."""
    from filelock import FileLock, Timeout

    locks = {seed: FileLock(out / "originals" / f".seed-{seed}.lock") for seed in seeds}
    (out / "originals").mkdir(parents=True, exist_ok=True)
    stepper: Stepper | None = None
    for patience in (0.0, -1.0):  # what nobody is at, then what somebody was at
        for seed, lock in locks.items():
            try:
                with lock.acquire(timeout=patience):
                    if not (original_folder(out, seed) / "model" / FACTS).exists():
                        stepper = _stepper(config, seed, device, len(tokenizer), stepper)
                        _train(config, stepper, seed, out, tokenizer, batches, tell)
            except Timeout:
                continue


def _stepper(config: RetrofitConfig, seed: int, device: str, symbols: int, before: Stepper | None) -> Stepper:
    """One for all seeds: what was compiled for the first serves the others."""
    fresh = fresh_original(config, seed, symbols).to(device)
    if before is None:
        return Stepper(fresh, replace(config.pretraining, seed=seed))
    before.restart(seed, fresh.state_dict())
    return before


def fresh_original(config: RetrofitConfig, seed: int, symbols: int) -> Reader:
    """A model with the first weights of ``seed``, which are the same on every device."""
    from transformers import LlamaConfig, LlamaForCausalLM

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
    return Reader(model)


def _train(
    config: RetrofitConfig,
    stepper: Stepper,
    seed: int,
    out: Path,
    tokenizer: Any,
    batches: Batches,
    tell: Callable[[int, StepReport], None],
) -> None:
    folder = original_folder(out, seed)
    settings = {"size": asdict(config.size), "length": config.length, "symbols": len(tokenizer)}
    last = train(
        stepper,
        batches,
        checkpoint=folder / "checkpoint",
        on_step=lambda report: tell(seed, report),
        settings=settings,
        metrics=MetricsLog(folder),
    )
    model: Any = stepper.model.model
    save_plain(model, tokenizer, folder / "model")
    facts = {
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "steps_per_second": last.steps_per_second,
        "acceleration": stepper.acceleration,
    }
    write_json(folder / "model" / FACTS, facts)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
