"""A run of seconds: a model with random weights, books of some thousand characters."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contentrope.corpora.long_context import Question
from contentrope.hf.characters import character_tokenizer
from contentrope.training import TrainConfig
from experiments.converted import save_plain
from experiments.open_model.config import Asking, OpenModelConfig, Reading

SIGNS = "".join(map(chr, range(32, 127))) + "\n"
TOKENIZER = character_tokenizer(SIGNS)
WORDS = "the sea was calm and grey that day as the ship left port under a low sun".split()  # noqa: SIM905

TINY = OpenModelConfig(
    variants=("untouched", "content:window=16"),
    main=("content:window=16",),
    seeds=1,
    measures=("perplexity", "tasks"),
    longest_unit=24,
    length=32,
    retrieval=0.0,
    reading=Reading(lengths=(16, 64), scored=8, windows=4, position_length=32, distant_length=64, near=8),
    asking=Asking(
        tasks=("kv_2", "kv_3"),
        few_tasks=("kv_2",),
        last_tasks=(),
        task_lengths=(400,),
        examples=(2,),
        short_examples=2,
    ),
    training=TrainConfig(steps=4, batch_size=2, learning_rate=1e-2),
)


@cache
def prose(seed: int, paragraphs: int = 60) -> str:
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(2 * paragraphs)]
    return "".join(f"{line}.{end}" for line, end in zip(lines, ["\n", "\n\n"] * paragraphs, strict=True))


class FewBooks:
    """Stands for the long-context texts."""

    def books(self, split: str) -> dict[str, str]:
        seeds = {"train": (1, 2), "validation": (3, 4)}[split]
        return {f"book-{seed}": prose(seed) for seed in seeds} | {"tale": "Short.\n" if split == "validation" else ""}

    def squad(self) -> list[Question]:
        return [Question(f"What was {word}?", ("the sea", "sea"), f"The sea was {word}.", "Sea") for word in WORDS]


def saved_model(folder: Path) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = LlamaConfig(
        vocab_size=len(TOKENIZER), num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None,
        eos_token_id=None, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    save_plain(model, TOKENIZER, folder)
    return folder


def tiny(folder: Path, **changes: object) -> OpenModelConfig:
    """The settings with a model in ``folder``, which is made if it is not there."""
    if not (folder / "config.json").exists():
        saved_model(folder)
    return replace(TINY, model=str(folder), **changes)  # type: ignore[arg-type]
