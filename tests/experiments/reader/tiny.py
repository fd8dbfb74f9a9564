"""A run of seconds: a model with random weights that writes characters, and a few made questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contentrope.corpora.long_context import Question
from contentrope.training import TrainConfig
from experiments.converted import save_plain
from experiments.reader.config import Asking, ReaderConfig
from tests.experiments.open_model.tiny import prose
from tests.hf.chats import PLAIN
from tests.hf.test_documents import with_template

TOKENIZER = with_template(PLAIN)

TINY = ReaderConfig(
    variants=("untouched", "rope", "content:window=16"),
    main=("content:window=16",),
    seeds=1,
    longest_unit=48,
    length=320,
    text_share=0.0,
    asking=Asking(passages=(1, 3), depths=(0.0, 1.0), examples=2, new_tokens=3, order_passages=(3,), orders=2),
    training=TrainConfig(steps=4, batch_size=2, learning_rate=1e-2),
)


class FewQuestions:
    """Stands for the long-context texts."""

    def natural_questions(self) -> list[Question]:
        names = [f"{a}{b}" for a in "abcdef" for b in "abcdef"]
        return [Question(f"who is {n}", (n,), f"{n} is {n}.", f"on {n}") for n in names]

    def books(self, split: str) -> dict[str, str]:
        return {"book": prose(1)}


def saved_model(folder: Path) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = LlamaConfig(
        vocab_size=len(TOKENIZER), num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None,
        eos_token_id=None, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    save_plain(model, TOKENIZER, folder)
    return folder


def tiny(folder: Path, **changes: object) -> ReaderConfig:
    """The settings with a model in ``folder``, which is made if it is not there."""
    if not (folder / "config.json").exists():
        saved_model(folder)
    return replace(TINY, model=str(folder), **changes)  # type: ignore[arg-type]
