"""A run of seconds, and a model whose every weight matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from contentrope.hf.characters import character_tokenizer
from contentrope.hf.finetune import CausalLM
from contentrope.training import TrainConfig
from experiments.conversions import Addresses
from experiments.converted import save_plain, with_addresses
from experiments.retrofit.config import LlamaSize, RetrofitConfig
from experiments.retrofit.models import fresh_original

TINY = RetrofitConfig(
    variants=("untouched", "content:positions=gated"),
    text=("stdlib",),
    characters=4_000,
    length=16,
    times=(1, 4),
    size=LlamaSize(dim=16, layers=1, heads=2, dropout=0.1),
    pretraining=TrainConfig(steps=20, batch_size=2, learning_rate=1e-2, warmup=2),
    training=TrainConfig(steps=4, batch_size=2, learning_rate=1e-2),
)
TOKENIZER = character_tokenizer("abcdef gh\n")
LINES = torch.tensor(
    [TOKENIZER("abc\nab cdefgh\nab\nfa")["input_ids"], TOKENIZER("h gf\na\nbcdef\nabcdef")["input_ids"]]
)


def lively_reader() -> CausalLM:
    reader = fresh_original(TINY, 0, len(TOKENIZER))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in reader.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return reader.eval()


def addressed_reader(**options: Any) -> CausalLM:
    """With addresses that are as if trained."""
    torch.manual_seed(0)
    reader = with_addresses(
        lively_reader().model, TOKENIZER, Addresses(**options), LINES[0], units="line", max_length=TINY.longest_unit
    )
    with torch.no_grad():
        for weight in reader.parameters():
            if weight.requires_grad:
                weight.add_(0.2 * torch.randn_like(weight))
    return reader.eval()


def saved_original(folder: Path) -> Path:
    if not (folder / "config.json").exists():
        save_plain(lively_reader().model, TOKENIZER, folder)
    return folder
