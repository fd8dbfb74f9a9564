"""What a scheme is: it turns the tokens of a call into a frame. One file per scheme; options are named there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from jaxtyping import Float
from torch import Tensor

from contentrope.config import ModelConfig, is_finite
from contentrope.errors import InputError, quoted
from contentrope.frames import Chunk, Frame
from contentrope.rotary import inverse_frequencies
from contentrope.units import Segmenter, SegmenterState, Terminators, Units

OptionsT = TypeVar("OptionsT")


class Scheme(Protocol):
    """A scheme is an ``nn.Module`` made from a :class:`ModelConfig`, with this one method besides."""

    def frame(self, chunk: Chunk) -> Frame: ...


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
"""What lies beyond would leave the range of float32 where it meets scores and positions, and the logits be NaN."""
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


def frequencies(config: ModelConfig) -> Float[Tensor, "heads pairs"]:
    return inverse_frequencies(config.rotary, config.key_heads, config.head_dim)


def segmenter_of(config: ModelConfig) -> Segmenter:
    rule = Terminators(config.terminators)
    return Segmenter(rule, max_length=config.max_unit_length, reader=config.reader)


def read_units(segmenter: Segmenter, chunk: Chunk) -> tuple[Units, SegmenterState, SegmenterState]:
    """The units of a chunk, and the segmenter's state before and after it."""
    before = chunk.state.segmenter or _replay(segmenter, chunk)
    units, after = advance(segmenter, before, chunk)
    return units, before, after


def advance(segmenter: Segmenter, before: SegmenterState, chunk: Chunk) -> tuple[Units, SegmenterState]:
    return segmenter.advance(
        before, chunk.ids, valid=chunk.valid, memory=chunk.memory, ends=chunk.ends, known=chunk.known
    )


def _replay(segmenter: Segmenter, chunk: Chunk) -> SegmenterState:
    """The state after the cached columns: of a new cache, or of one that was rolled back."""
    state = segmenter.initial(len(chunk.ids), chunk.ids.device)
    cache = chunk.cache
    if cache is None or not cache.length:
        return state
    marked = cache.has_memory and not segmenter.reader.ids
    _, state = segmenter.advance(
        state,
        cache.fact("ids"),
        valid=cache.fact("valid").bool() if cache.padded else None,
        memory=cache.fact("memory").bool() if marked else None,
        ends=cache.fact("closes").bool(),
    )
    return state
