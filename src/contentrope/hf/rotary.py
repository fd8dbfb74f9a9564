"""How a model rotates its queries and keys: measured, not kept in a list.

Shapes: rows (of one token each), heads, head_dim, pairs (planes that rotate).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.config import PairLayout
from contentrope.rotary import Rotation, rotate

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Relative to the largest number. Rotary embeddings are computed in float32, whatever the model's dtype."""
EXACT_UP_TO = 1024
"""Positions up to which the angles of a model's own float32 serve: there they are off by 6e-5 at most."""


@dataclass(frozen=True, eq=False)
class LayerRotary:
    """The planes of a head, how fast each rotates, and which way."""

    frequency: Float[Tensor, "pairs"]
    """What the model at hand rotates by, to the last bit; casting a whole model rounds it too."""
    nominal: Float[Tensor, "pairs"]
    """From its configuration: the same in every dtype, so that saved addresses fit a model in any of them."""
    pairs: PairLayout
    backwards: bool
    heads: int
    """Key/value heads."""
    head_dim: int

    def rotate(self, x: Float[Tensor, "batch seq heads head_dim"], rotation: Rotation) -> Tensor:
        """Rotate ``x`` as the model does with growing positions: angles of ``frequency * n`` go n positions on."""
        if not self.backwards:
            return rotate(x, rotation, self.pairs)
        angles = None if rotation.angles is None else -rotation.angles
        return rotate(x, Rotation(rotation.cos, -rotation.sin, angles), self.pairs)

    def rotate_states(self, x: Float[Tensor, "batch heads seq head_dim"], rotation: Rotation) -> Tensor:
        """The same for queries or keys in the layout of attention."""
        return self.rotate(x.transpose(1, 2), rotation).transpose(1, 2)

    def same_as(self, other: LayerRotary) -> bool:
        if (self.pairs, self.backwards, self.heads) != (other.pairs, other.backwards, other.heads):
            return False
        return self.head_dim == other.head_dim and torch.equal(self.frequency, other.frequency)

    def describe(self) -> dict[str, object]:
        """As settings to be compared; frequencies at the precision in which models agree on them."""
        return {
            "pairs": self.pairs,
            "backwards": self.backwards,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "frequency": [float(f"{x:.6g}") for x in self.nominal.tolist()],
        }


class Source(NamedTuple):
    """Frequencies that a rotary module holds."""

    frequency: Float[Tensor, "pairs"]
    nominal: Float[Tensor, "pairs"]
    """Before the buffer was cast."""


def sources_of(rotary: nn.Module) -> list[Source]:
    """Of every buffer that may hold frequencies. Some were rounded along with the weights (``model.to(dtype)`` does so,
    ``from_pretrained(dtype=...)`` does not); one made again from the configuration has them whole."""
    held = {name: b.detach().cpu() for name, b in rotary.named_buffers() if b.is_floating_point() and b.ndim == 1}
    made = _made_again(rotary)
    return [Source(b.double(), _before_cast(b, made.get(name)).double()) for name, b in held.items()]


def _made_again(rotary: nn.Module) -> dict[str, Tensor]:
    try:
        with torch.device("cpu"):
            module: Any = type(rotary)(config=rotary.config)
    except Exception:  # a class with another constructor: all there is is what it holds
        return {}
    return dict(module.named_buffers())


def _before_cast(buffer: Tensor, made: Tensor | None) -> Tensor:
    """Rounded values may stand in a buffer that is wide again."""
    if made is None or made.shape != buffer.shape:
        return buffer
    rounded = (made.to(dtype).to(buffer.dtype) for dtype in (buffer.dtype, torch.bfloat16, torch.float16))
    return made if any(torch.equal(r, buffer) for r in rounded) else buffer


def rotary_of(
    seen: dict[int, Float[Tensor, "rows heads head_dim"]], angles: Float[Tensor, "rotating"], sources: list[Source]
) -> LayerRotary | None:
    """The rotation that makes of the vectors at position 0 those at the other positions, or None.

    ``angles`` are those of position 1, in float32 at least: a coarser dtype would hide the frequencies.
    """
    _, heads, head_dim = seen[0].shape
    for source in _sources(angles, sources):
        if 2 * len(source.frequency) > head_dim:
            continue
        for pairs in get_args(PairLayout):
            for backwards in (False, True):
                found = LayerRotary(*source, pairs, backwards, heads, head_dim)
                if _explains(found, seen):
                    return found
    return None


def stands_still(seen: dict[int, Tensor]) -> bool:
    """Whether the layer gives no position to its vectors."""
    return all(_close(seen[0], there) for there in seen.values())


def _sources(angles: Float[Tensor, "rotating"], sources: list[Source]) -> Iterator[Source]:
    """One per plane; rotary embeddings list each of them twice, in one of two orders, or once."""
    half = len(angles) // 2
    if len(angles) == 2 * half and half:
        if torch.allclose(angles[:half], angles[half:]):
            yield _exact(angles[:half], sources)
        if torch.allclose(angles[0::2], angles[1::2]):
            yield _exact(angles[0::2], sources)
    yield _exact(angles, sources)


def _exact(measured: Tensor, sources: list[Source]) -> Source:
    """The buffer that was measured: angles taken back from cosines and sines are good to float32 only."""
    for source in sources:
        frequency = source.frequency
        if frequency.shape == measured.shape and torch.allclose(frequency, measured, rtol=1e-4, atol=1e-6):
            return source
    return Source(measured, measured)


def _explains(rotary: LayerRotary, seen: dict[int, Tensor]) -> bool:
    for position, there in seen.items():
        angles = (position * rotary.frequency.to(there.device))[None, None, None]
        rotated = rotary.rotate(seen[0].double()[:, None], Rotation(angles.cos(), angles.sin()))[:, 0]
        if not _close(rotated.to(there.dtype), there):
            return False
    return True


def _close(ours: Tensor, theirs: Tensor) -> bool:
    error = (ours.double() - theirs.double()).abs().max()
    return bool(error <= TOLERANCE[theirs.dtype] * theirs.double().abs().max())


# --- positions far into a text ---


class Listed(NamedTuple):
    """The cosines and sines of a rotary module: of which of the model's rotaries, in which order, how large."""

    number: int
    order: Literal["halves", "neighbours", "once"]
    """Each plane twice, the second time behind all others or next to itself; or once."""
    amplitude: float

    def by_channel(self, frequency: Float[Tensor, "pairs"]) -> Float[Tensor, "channels"]:
        """
        >>> Listed(0, "neighbours", 1.0).by_channel(torch.tensor([1.0, 0.5])).tolist()
        [1.0, 1.0, 0.5, 0.5]
        """
        if self.order == "once":
            return frequency
        return frequency.repeat(2) if self.order == "halves" else frequency.repeat_interleave(2)


def listings(rotary: nn.Module, rotaries: list[LayerRotary], like: Tensor) -> dict[str | None, Listed]:
    """By the kind of layer that the module is called for, None where it knows one kind only. What it is not understood
    to list is left out."""
    by_kind = "layer_type" in inspect.signature(rotary.forward).parameters
    kinds = getattr(rotary, "layer_types", None) if by_kind else None
    one = torch.ones(1, 1, dtype=torch.int64, device=like.device)
    found: dict[str | None, Listed | None] = {}
    for kind in kinds or (None,):
        given = {} if kind is None else {"layer_type": kind}
        cos_sin = rotary.forward(like[None, :1].float(), one, **given)
        if isinstance(cos_sin, tuple) and len(cos_sin) == 2:
            cos, sin = (x[0, 0].double().cpu() for x in cos_sin)
            found[kind] = _listed(cos, sin, rotaries)
    return {kind: listed for kind, listed in found.items() if listed is not None}


def _listed(
    cos: Float[Tensor, "channels"], sin: Float[Tensor, "channels"], rotaries: list[LayerRotary]
) -> Listed | None:
    """From those of position 1."""
    angles, amplitude = torch.atan2(sin, cos), float(torch.hypot(sin, cos).mean())
    amplitude = 1.0 if math.isclose(amplitude, 1.0, rel_tol=1e-6) else amplitude
    for number, rotary in enumerate(rotaries):
        for order in ("halves", "neighbours", "once"):
            listed = Listed(number, order, amplitude)
            expected = listed.by_channel(rotary.frequency)
            if expected.shape == angles.shape and torch.allclose(expected, angles, rtol=1e-4, atol=1e-6):
                return listed
    return None


def exact_beyond(
    first: int,
    cos_sin: tuple[Float[Tensor, "rows seq channels"], ...],
    positions: Int[Tensor, "rows seq"],
    frequency: Float[Tensor, "channels"],
    amplitude: float,
) -> tuple[Tensor, ...]:
    """The cosines and sines, from position ``first`` on of angles in float64: float32 is off by 0.06 at a million."""
    angles, far = positions[..., None] * frequency, (positions >= first)[..., None]
    wide = torch.where(far, angles, 0.0)
    exact = (amplitude * wide.cos(), amplitude * wide.sin())
    return tuple(torch.where(far, new.to(old.dtype), old) for new, old in zip(exact, cos_sin, strict=True))
