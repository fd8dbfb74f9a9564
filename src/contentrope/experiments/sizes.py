"""How large the models of an experiment are; all its variants have this in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from contentrope.config import ModelConfig
from contentrope.experiments.variants import parse_variant


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
        config = ModelConfig(
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            scheme=parsed.scheme,
            options=parsed.options,
            **settings,
        )
        return replace(config, rotary=replace(config.rotary, **parsed.rotary))
