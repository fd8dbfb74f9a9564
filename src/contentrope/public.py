"""The names that ``import contentrope`` offers: the one list of them."""

from contentrope.attention import addressed_attention
from contentrope.cache import Cache
from contentrope.checkpoint import load, load_into, save
from contentrope.config import ModelConfig, RotaryConfig
from contentrope.errors import BackendError, CacheError, CheckpointError, InputError
from contentrope.generation import generate
from contentrope.model import Transformer
from contentrope.units import (
    Boundaries,
    FixedLength,
    Segmenter,
    Terminators,
    TextRule,
    Units,
    segment,
    vocabulary_of,
)

__all__ = [
    "BackendError",
    "Boundaries",
    "Cache",
    "CacheError",
    "CheckpointError",
    "FixedLength",
    "InputError",
    "ModelConfig",
    "RotaryConfig",
    "Segmenter",
    "Terminators",
    "TextRule",
    "Transformer",
    "Units",
    "addressed_attention",
    "generate",
    "load",
    "load_into",
    "save",
    "segment",
    "vocabulary_of",
]
