"""How a model rotates its queries and keys: measured, not kept in a list.

Shapes: rows (of one token each), heads, head_dim, pairs (planes that rotate).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from contentrope.config import PairLayout
from contentrope.rotary import Rotation, rotate

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Relative to the largest number. Rotary embeddings are computed in float32, whatever the model's dtype."""


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
