"""Settings of a model, checked when they are made and written to disk with its weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from operator import index
from typing import Any, Literal, get_args

from contentrope.errors import InputError, quoted

PairLayout = Literal["half", "interleaved"]
FrequencyLayout = Literal["per_head", "model_wide"]


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """How a head's dimensions are paired and how fast each pair rotates.

    >>> RotaryConfig(fraction=0.5).pair_count(head_dim=32)
    8
    """

    base: float = 10000.0
    pairs: PairLayout = "half"
    frequencies: FrequencyLayout = "per_head"
    fraction: float = 1.0
    """The share of each head's dimensions that rotate; the others pass through."""

    def __post_init__(self) -> None:
        if not (is_finite(self.base) and self.base > 1.0):
            raise InputError(f"rotary base must be a finite number above 1, got {quoted(self.base)}")
        _require_choice("pairs", self.pairs, get_args(PairLayout))
        _require_choice("frequencies", self.frequencies, get_args(FrequencyLayout))
        if not (is_finite(self.fraction) and 0.0 < self.fraction <= 1.0):
            raise InputError(f"rotary fraction must be in (0, 1], got {quoted(self.fraction)}")

    def pair_count(self, head_dim: int) -> int:
        rotating = round(head_dim * self.fraction)
        if rotating < 2 or rotating % 2:
            raise InputError(
                f"head_dim {head_dim} x fraction {self.fraction} gives {rotating} rotating dimensions; "
                "an even number of at least 2 is needed"
            )
        return rotating // 2


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that decides what a :class:`contentrope.Transformer` computes.

    >>> config = ModelConfig(vocab_size=65, dim=128, layers=4, heads=4, terminators=(0,))
    >>> config.head_dim, config.key_heads
    (32, 4)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int | None = None
    scheme: str = "content"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the scheme; each scheme's file names the ones it takes."""
    terminators: tuple[int, ...] = ()
    reader: tuple[int, ...] = ()
    """Marker ids: units that begin before the first of them are memory units. Empty: no memory units."""
    max_unit_length: int = 256
    dropout: float = 0.0
    """On the embeddings and on what each block adds."""
    attention_dropout: float = 0.0
    """How likely a head reads nothing at a position, for all queries alike: attention weights one by one are not
    dropped, as no fused kernel can."""
    rotary: RotaryConfig = field(default_factory=RotaryConfig)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "layers", "heads", "max_unit_length"):
            require_positive(name, getattr(self, name))
        if self.dim % self.heads:
            raise InputError(f"dim {self.dim} is not divisible by heads {self.heads}")
        if self.kv_heads is not None:
            require_positive("kv_heads", self.kv_heads)
            if self.heads % self.kv_heads:
                raise InputError(f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}")
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            if not (is_finite(value) and 0.0 <= value < 1.0):
                raise InputError(f"{name} must be in [0, 1), got {quoted(value)}")
        if not isinstance(self.scheme, str):
            raise InputError(f"scheme must be the name of one, got {quoted(self.scheme)}")
        if not isinstance(self.options, Mapping):
            raise InputError(f"options must be a mapping of names to values, got {quoted(self.options)}")
        if not isinstance(self.rotary, RotaryConfig):
            raise InputError(f"rotary must be a RotaryConfig, got {quoted(self.rotary)}")
        for name in ("terminators", "reader"):
            object.__setattr__(self, name, _ids_in_vocabulary(name, getattr(self, name), self.vocab_size))
        # JSON knows no tuples: with lists made tuples here, settings read back equal those written.
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in self.options.items()}
        object.__setattr__(self, "options", options)
        self.rotary.pair_count(self.head_dim)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def key_heads(self) -> int:
        """Key/value heads: ``kv_heads``, or as many as query heads."""
        return self.kv_heads or self.heads

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.key_heads

    @property
    def pair_count(self) -> int:
        return self.rotary.pair_count(self.head_dim)

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data["terminators"], data["reader"] = list(self.terminators), list(self.reader)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Read what :meth:`to_dict` gave, perhaps from a file; anything else is refused."""
        _require_known("model setting", data, {f.name for f in fields(cls)})
        required = (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)
        missing = [name for name in required if name not in data]
        if missing:
            raise InputError(f"missing is the model setting {missing[0]}")
        rotary = data.get("rotary", {})
        _require_known("rotary setting", rotary, {f.name for f in fields(RotaryConfig)})
        return cls(**{**data, "rotary": RotaryConfig(**rotary)})


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Name every setting in which two configurations differ, one line each.

    >>> differences({"dim": 8, "rotary": {"base": 1e4}}, {"dim": 8, "rotary": {"base": 5e5}})
    ['rotary.base: 10000.0 here, 500000.0 in the file']
    """
    lines = []
    for key in sorted({*ours, *theirs}):
        here, there = ours.get(key), theirs.get(key)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            lines += differences(here, there, f"{prefix}{key}.")
        elif _plain(here) != _plain(there):
            lines.append(f"{prefix}{key}: {here!r} here, {there!r} in the file")
    return lines


def is_finite(value: Any) -> bool:
    """Whether it is a number, and one that a float can hold.

    >>> is_finite(2), is_finite(10**400), is_finite(float("nan")), is_finite("2"), is_finite(True)
    (True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def require_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a positive integer, got {quoted(value)}")


def _require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}; got {quoted(value)}")


def _require_known(what: str, data: Mapping[str, Any], known: set[str]) -> None:
    if not isinstance(data, Mapping):
        raise InputError(f"{what}s must be a mapping of names to values, got {quoted(data)}")
    unknown = sorted(map(str, set(data) - known))
    if unknown:
        raise InputError(f"unknown {what} {', '.join(unknown)}; known are {', '.join(sorted(known))}")


def _ids_in_vocabulary(name: str, ids: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    try:
        ids = tuple(index(i) for i in ids)
    except TypeError:
        raise InputError(f"{name} must be token ids, e.g. (0,); got {quoted(ids)}") from None
    outside = [i for i in ids if not 0 <= i < vocab_size]
    if outside:
        raise InputError(
            f"{name} {quoted(outside)} lie outside the vocabulary of {vocab_size} (ids 0..{vocab_size - 1})"
        )
    return ids
