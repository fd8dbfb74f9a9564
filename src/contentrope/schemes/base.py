"""What a scheme is: it makes a context of the tokens of a call. One file per scheme; options are named there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.config import ModelConfig, is_finite
from contentrope.context import Chunk, Context, PlainContext
from contentrope.errors import InputError, quoted
from contentrope.rotary import PositionRotations, inverse_frequencies
from contentrope.units import Segmenter, Terminators

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    pass


class Scheme(nn.Module):
    """Made from a :class:`ModelConfig`; ``schemes/__init__.py`` lists all of them. Its class says what it can do."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    """A dataclass: what :attr:`ModelConfig.options` may hold."""
    reads_units: ClassVar[bool] = False
    """The caller may give ``ends``."""
    knows_memory_units: ClassVar[bool] = False
    """It reads by addressed attention: ``memory``, ``reader`` and ``backend`` are for it."""
    shares_texts: ClassVar[bool] = False
    """Several processes may read a text together."""
    draws_at_random: ClassVar[bool] = False
    """Its positions or addresses depend on the seed of a row."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.options: Any = read_options(self.name, self.Options, config.options)

    def context(self, chunk: Chunk) -> Context:
        raise NotImplementedError


def read_options(scheme: str, kind: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """The scheme's options as its dataclass; an unknown one is refused with the list of those it takes.

    A value must be of its default's kind: options also come from the command line and from files.
    """
    defaults = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(map(str, set(given) - set(defaults)))
    if unknown:
        allowed = ", ".join(sorted(defaults)) or "none"
        raise InputError(f"scheme {scheme!r} has no option {quoted(', '.join(unknown))[1:-1]}; it takes: {allowed}")
    for name, value in given.items():
        default = defaults[name]
        if not _is_like(default, value):
            expected = f"{_KINDS[type(default)]}, e.g. {default!r}"
            raise InputError(f"option {name!r} of scheme {scheme!r} must be {expected}; got {quoted(value)}")
        if any(abs(number) > LARGEST for number in _numbers(value)):
            raise InputError(f"option {name!r} of scheme {scheme!r} is at most {LARGEST:g}; got {quoted(value)}")
    return kind(**given)


LARGEST = 1e9
"""A larger option would leave the range of float32 where it meets scores and positions, and the logits be NaN."""
_KINDS = {
    bool: "True or False",
    int: "an integer",
    float: "a finite number",
    str: "a word",
    tuple: "a list of finite numbers",
}


def _is_like(default: Any, value: Any) -> bool:
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(_is_like(0.0, v) for v in value)
    if isinstance(default, float):
        return is_finite(value)
    return type(value) is type(default)


def _numbers(value: Any) -> tuple[int | float, ...]:
    return tuple(v for v in (value if isinstance(value, tuple) else (value,)) if is_finite(v) or type(v) is int)


# --- schemes on one global position counter -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    factor: float = 16.0
    """How many times longer than in training the context may become."""

    def __post_init__(self) -> None:
        if not self.factor >= 1.0:
            raise InputError(f"factor must be at least 1, got {self.factor}")


def segmenter_of(config: ModelConfig) -> Segmenter:
    return Segmenter(Terminators(config.terminators), max_length=config.max_unit_length, reader=config.reader)


def frequencies(config: ModelConfig) -> Float[Tensor, "heads pairs"]:
    return inverse_frequencies(config.rotary, config.key_heads, config.head_dim)


def rotary_context(
    chunk: Chunk,
    rotations: PositionRotations,
    positions: Int[Tensor, "rows seq"] | None = None,
    bound: int | None = None,
) -> PlainContext:
    """Plain attention with queries and keys rotated by their position: the row's token count unless given."""
    if positions is None:
        positions, bound = chunk.positions(), chunk.columns
    assert bound is not None
    return PlainContext(chunk, rotations.at(positions, chunk.wide, bound=bound))
