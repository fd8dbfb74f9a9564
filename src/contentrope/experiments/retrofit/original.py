"""The model that is converted: trained here once per seed, in Llama's architecture, and saved as anybody's would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from contentrope.config import differences
from contentrope.errors import CheckpointError
from contentrope.experiments.retrofit.config import RetrofitConfig
from contentrope.experiments.retrofit.reader import Reader, add_dropout
from contentrope.experiments.suite import seeded
from contentrope.files import require_own
from contentrope.hf.plain import save_plain
from contentrope.results import read_json, write_json
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, train
from contentrope.training import checkpoint as checkpoints
from contentrope.training.metrics import METRICS

FACTS = "training.json"
"""What its training took; written last, so that a folder that has it is complete."""


def original_folder(out: Path, seed: int) -> Path:
    return out / "originals" / f"seed-{seed}"


@dataclass(frozen=True)
class Pretraining:
    """All that decides what the originals become."""

    config: RetrofitConfig
    tokenizer: Any
    batches: Batches
    corpus: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        training = {**asdict(self.config.pretraining), "seed": None}
        about = {"size": asdict(self.config.size), "length": self.config.length, "pretraining": training}
        return {**about, "corpus": self.corpus, "symbols": len(self.tokenizer)}


def train_originals(
    plan: Pretraining, seeds: list[int], out: Path, device: str, tell: Callable[[int, StepReport], None]
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
                    folder = original_folder(out, seed)
                    if not _is_there(plan, folder / "model" / FACTS):
                        require_own(folder / "model", folder / METRICS)
                        stepper = _stepper(plan, seed, device, stepper)
                        _train(plan, stepper, seed, out, tell)
            except Timeout:
                continue


def _is_there(plan: Pretraining, facts: Path) -> bool:
    """Whether an original is finished; refused if it is another one."""
    if not facts.exists():
        return False
    unlike = differences(plan.settings(), read_json(facts).get("settings", {}))
    if unlike:
        raise CheckpointError(f"{facts.parent} is another original ({'; '.join(unlike)}); choose another folder")
    return True


def _stepper(plan: Pretraining, seed: int, device: str, before: Stepper | None) -> Stepper:
    """One for all seeds: what was compiled for the first serves the others."""
    fresh = fresh_original(plan.config, seed, len(plan.tokenizer)).to(device)
    if before is None:
        return Stepper(fresh, replace(plan.config.pretraining, seed=seed))
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


def _train(plan: Pretraining, stepper: Stepper, seed: int, out: Path, tell: Callable[[int, StepReport], None]) -> None:
    folder = original_folder(out, seed)
    last = train(
        stepper,
        plan.batches,
        checkpoint=folder / "checkpoint",
        on_step=lambda report: tell(seed, report),
        settings=plan.settings(),
        metrics=MetricsLog(folder),
    )
    model: Any = stepper.model.model
    save_plain(model, plan.tokenizer, folder / "model")
    facts = {
        "settings": plan.settings(),
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "steps_per_second": last.steps_per_second,
        "acceleration": stepper.acceleration,
    }
    write_json(folder / "model" / FACTS, facts)
    checkpoints.drop(folder / "checkpoint")
