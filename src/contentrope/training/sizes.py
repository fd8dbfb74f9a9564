"""How large the models of an experiment are; all its variants have this in common."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from contentrope.config import ModelConfig
from contentrope.corpora import CharVocabulary
from contentrope.errors import InputError, quoted
from contentrope.schemes.variants import parse_variant

MODULES_OF_A_LAYER = 2**15
"""Bytes of Python's own that a layer takes, however narrow."""


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """What all variants of the model have in common."""

    dim: int = 128
    """Width."""
    layers: int = 4
    """Layers."""
    heads: int = 4
    """Attention heads."""
    dropout: float = 0.0
    """Dropout on the embeddings and on what each block adds."""
    attention_dropout: float = 0.0
    """How likely a head reads nothing at a position, for all queries alike."""

    def model(self, variant: str, **settings: Any) -> ModelConfig:
        """The settings of a model of this size; ``settings`` are its vocabulary and units."""
        parsed = parse_variant(variant)
        config = ModelConfig(**asdict(self), scheme=parsed.scheme, options=parsed.options, **settings)
        config = replace(config, rotary=replace(config.rotary, **parsed.rotary))
        require_memory(config)
        return config


def character_model(variant: str, size: ModelSize, vocabulary: CharVocabulary) -> ModelConfig:
    """The settings of a character model whose units are lines."""
    if "\n" not in vocabulary.symbols:
        raise InputError("units are lines, and the part of the text to train on has no line break; take another text")
    return size.model(variant, vocab_size=len(vocabulary), terminators=(vocabulary.id_of("\n"),))


def require_memory(config: ModelConfig) -> None:
    """Refuse a model whose weights alone do not fit into this machine, before minutes are spent on making it."""
    # Embedding and head; in a layer four matrices of attention and eight of the feed-forward network, or nearly so.
    weights = 2 * config.vocab_size * config.dim + 12 * config.layers * config.dim**2
    needed, there = 4 * weights + MODULES_OF_A_LAYER * config.layers, memory()
    if there is not None and needed > there:
        raise InputError(
            f"a model with dim {quoted(config.dim)} and layers {quoted(config.layers)} takes {gigabytes(needed)} for "
            f"its weights alone, this machine has {gigabytes(there)}; take fewer of them"
        )


def memory() -> int | None:
    """Bytes of this machine, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def gigabytes(size: int) -> str:
    """
    >>> gigabytes(3 * 10**9), gigabytes(10**400)
    ('3 GB', 'more than a million GB')
    """
    return f"{-(-size // 10**9):,} GB" if size < 10**15 else "more than a million GB"
