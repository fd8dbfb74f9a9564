"""What a call may complete: the columns of its units, their addresses, and the rotations of keys and queries.

Shapes: slots are the units that a call touches, the first of them open before it; window, the columns from the first
whose unit the call may complete, to its last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.anchors import Anchors, UnitsBefore, unit_lengths
from contentrope.attention.fused import FusedRotations, address_rotations
from contentrope.attention.pairs import spared_units, unit_begins
from contentrope.hf.addresses import OpenUnit
from contentrope.hf.keys import Rotations, Standing, Window
from contentrope.hf.rotary import LayerRotary
from contentrope.hf.state import Columns
from contentrope.rotary import Rotation, rotation_of
from contentrope.units import SegmenterState, Units


class Text(NamedTuple):
    """The tokens of one call."""

    ids: Int[Tensor, "batch seq"]
    valid: Bool[Tensor, "batch seq"] | None
    """None: no padding."""
    ends: Bool[Tensor, "batch seq"] | None
    """The caller's own unit ends, instead of the rule's."""


class Reading(NamedTuple):
    """A call between the columns before it and those after it."""

    text: Text
    units: Units
    before: SegmenterState
    after: SegmenterState
    columns: Columns | None
    addresses: Any
    """:class:`~contentrope.hf.addresses.Addresses`, or what PEFT has wrapped around them."""
    embed: Callable[[Int[Tensor, "batch seq"]], Float[Tensor, "batch seq dim"]]
    """Ids to input embeddings."""

    @property
    def slot(self) -> Int[Tensor, "batch seq"]:
        """The token's unit, counted from the one that was open before this call."""
        return self.units.unit - self.before.next_unit

    @property
    def finished(self) -> Int[Tensor, "batch 1"]:
        """Units that the call completes."""
        return self.after.next_unit - self.before.next_unit

    def by_token(
        self, by_slot: Float[Tensor, "batch slots kv_heads pairs"]
    ) -> Float[Tensor, "batch seq kv_heads pairs"]:
        index = self.slot.clamp(max=by_slot.shape[1] - 1)[..., None, None]
        return by_slot.gather(1, index.expand(-1, -1, *by_slot.shape[2:]))


class Completing(NamedTuple):
    """The units of a call as the columns of a window."""

    reading: Reading
    begin: int
    old: int
    """Columns of the window that were read before."""
    completed: Bool[Tensor, "batch window"] | None
    """None: keys are read in both versions, and all that are read addressed are completed."""
    by_slot: list[Float[Tensor, "batch slots kv_heads pairs"]]
    """Addresses, for each rotary of the model."""

    @property
    def total(self) -> int:
        return self.begin + self.old + self.reading.units.seq_length

    def by_column(self, by_slot: Tensor) -> Float[Tensor, "batch window kv_heads pairs"]:
        new = self.reading.by_token(by_slot)
        return torch.cat((by_slot[:, :1].expand(-1, self.old, -1, -1), new), dim=1) if self.old else new


def _completing(reading: Reading) -> Completing:
    text, units, columns, slot = reading.text, reading.units, reading.columns, reading.slot
    embedded = reading.embed(text.ids)
    if columns is None or not columns.count:
        # A single token reads its own key in the version that queries meet later on.
        both_versions = columns is None and units.seq_length > 1
        completed = None if both_versions else slot < reading.finished
        return Completing(reading, 0, 0, completed, reading.addresses(embedded, units, slot, None))
    if torch.compiler.is_compiling():  # a bound that does not depend on the data
        begin = max(columns.count - reading.addresses.max_length + 1, 0)
    else:
        begin = reading.before.open_from()
    belongs = (columns.fact("unit", begin) == reading.before.next_unit) & columns.fact("valid", begin).bool()
    open_unit = OpenUnit(reading.embed(columns.fact("ids", begin)), columns.fact("local", begin), belongs)
    by_slot = reading.addresses(embedded, units, slot, open_unit)
    completed = torch.cat((belongs & (reading.finished > 0), (slot < reading.finished) & units.valid), dim=1)
    return Completing(reading, begin, columns.count - begin, completed, by_slot)


def completed(reading: Reading, by_kernel: tuple[LayerRotary, ...]) -> Rotations:
    """Keys are rotated where their unit is completed, by one kernel if it is given the rotaries of the model."""
    found = _completing(reading)
    angles = tuple(found.by_column(by_slot) for by_slot in found.by_slot)
    rotations = tuple(rotation_of(x) for x in angles)
    if found.completed is not None:
        rotations = tuple(x.only_where(found.completed) for x in rotations)
    window = Window(found.begin, found.total, found.completed, angles, rotations)
    if by_kernel and found.completed is None:
        fused = (fused_rotations(*both, reading.units) for both in zip(angles, by_kernel, strict=True))
        return Rotations(window, fused=tuple(fused))
    return Rotations(window, tuple(_of_queries(rotation, reading.units) for rotation in rotations))


def fused_rotations(
    angles: Float[Tensor, "batch seq kv_heads pairs"], rotary: LayerRotary, units: Units
) -> FusedRotations:
    """``angles`` are those of each token's unit, forwards as the model rotates."""
    return address_rotations(-angles if rotary.backwards else angles, units.closes)


def _of_queries(rotation: Rotation, units: Units) -> Rotation:
    """Of this call's tokens, those that close a unit are rotated as its keys are."""
    own = (None if x is None else x[:, -units.seq_length :] for x in rotation)
    return Rotation(*own).only_where(units.closes)  # type: ignore[arg-type]


def anchored(reading: Reading, anchors: Anchors, *, completes: bool) -> Rotations:
    """Open units begin at anchors."""
    recent = _recent(reading, anchors)
    frequencies = [rotations.inverse_frequency for rotations in reading.addresses.rotations]
    columns, units, before, slot = reading.columns, reading.units, reading.before, reading.slot
    if columns is not None and not completes:
        standing = columns.standing or _standing(reading, recent, frequencies, anchors)
        window = Window(columns.count, columns.count + 1, None, (), standing.places)
        places, spared = standing
        return Rotations(window, places, places, spared=spared, recent=recent, standing=standing)
    found = _completing(reading)
    slots = found.by_slot[0].shape[1]
    dtype = reading.addresses.dtype
    length = unit_lengths(slot.clamp(max=slots - 1), units.valid, before.next_local, slots, dtype)
    begins = unit_begins(units, slot, slots)
    carried = [
        anchors.carried(known.then(address[:, :-1], length[:, :-1], begins[:, :-1]), before.next_unit, frequency)
        for known, address, frequency in zip(recent, found.by_slot, frequencies, strict=True)
    ]
    closes = units.closes[..., None, None]
    by_token = [(reading.by_token(a), reading.by_token(c)) for a, c in zip(found.by_slot, carried, strict=True)]
    newest = [known.then(address, length, begins) for known, address in zip(recent, found.by_slot, strict=True)]
    return Rotations(
        window=_anchored_window(found, carried),
        queries=tuple(rotation_of(torch.where(closes, address, place)) for address, place in by_token),
        places=tuple(rotation_of(place) for _, place in by_token),
        spared=spared_units(newest[0].start, slot, before.next_unit, anchors.back),
        recent=tuple(known.after(reading.finished, anchors.reach) for known in newest),
    )


def _standing(
    reading: Reading, recent: tuple[UnitsBefore, ...], frequencies: list[Tensor], anchors: Anchors
) -> Standing:
    """Of a unit that is open before and after the call."""
    first = reading.before.next_unit
    carried = (anchors.carried(known, first, row) for known, row in zip(recent, frequencies, strict=True))
    begins = torch.cat((recent[0].start, reading.units.start), dim=1)
    spared = spared_units(begins, torch.zeros_like(first), first, anchors.back)
    return Standing(tuple(rotation_of(x) for x in carried), spared)


def _anchored_window(found: Completing, carried: list[Tensor]) -> Window:
    """Keys are rotated to where they stand after the call; those that were read before stand where their unit began."""
    addresses = tuple(found.by_column(by_slot) for by_slot in found.by_slot)
    places = tuple(found.by_column(by_slot) for by_slot in carried)
    is_new = (torch.arange(found.total - found.begin, device=places[0].device) >= found.old)[:, None, None]
    rotations = []
    for address, place in zip(addresses, places, strict=True):
        after = address if found.completed is None else torch.where(found.completed[..., None, None], address, place)
        rotations.append(rotation_of(after - torch.where(is_new, 0.0, place)))
    angles = tuple(address - place for address, place in zip(addresses, places, strict=True))
    return Window(found.begin, found.total, found.completed, angles, tuple(rotations), addresses)


def _recent(reading: Reading, anchors: Anchors) -> tuple[UnitsBefore, ...]:
    """For each rotary, as many completed units before the call as anchors look back."""
    columns, addresses, ids = reading.columns, reading.addresses, reading.text.ids
    if columns is not None and columns.recent is not None:
        return columns.recent
    found = []
    for number, rotary in enumerate(addresses.rotaries):
        length = torch.zeros(len(ids), anchors.reach, dtype=addresses.dtype, device=ids.device)
        address = length[..., None, None].expand(-1, -1, rotary.heads, len(rotary.frequency))
        none = UnitsBefore(address, length, length.long())
        found.append(none if columns is None else columns.units_before(reading.before.next_unit, number, none))
    return tuple(found)
