"""What a call may complete: the columns of its units, their addresses, and by what keys and queries are turned.

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
from contentrope.attention.pairs import Spared, spared_units, unit_begins
from contentrope.hf.addresses import OpenUnit
from contentrope.hf.keys import Window
from contentrope.hf.state import Columns, Standing
from contentrope.rotary import Rotation, rotation_of
from contentrope.units import SegmenterState, Units

Embed = Callable[[Int[Tensor, "batch seq"]], Float[Tensor, "batch seq dim"]]
"""Ids to input embeddings."""


class Text(NamedTuple):
    """The tokens of one call, as the decoder is given them."""

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
    longest: int
    """Tokens that a unit has at most."""

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
    """None: keys are read in both versions, and all that anybody reads addressed is completed."""
    by_slot: list[Float[Tensor, "batch slots kv_heads pairs"]]
    """Addresses, for each turning of the model."""

    @property
    def total(self) -> int:
        return self.begin + self.old + self.reading.units.seq_length

    def by_column(self, by_slot: Tensor) -> Float[Tensor, "batch window kv_heads pairs"]:
        new = self.reading.by_token(by_slot)
        return torch.cat((by_slot[:, :1].expand(-1, self.old, -1, -1), new), dim=1) if self.old else new


def completing(reading: Reading, addresses: Any, embed: Embed) -> Completing:
    """``addresses`` are :class:`~contentrope.hf.addresses.Addresses`, or what PEFT has wrapped around them."""
    text, units, columns, slot = reading.text, reading.units, reading.columns, reading.slot
    embedded = embed(text.ids)
    if columns is None or not columns.count:
        # A single token reads its own key in the version that queries meet later on.
        both_versions = columns is None and units.seq_length > 1
        completed = None if both_versions else slot < reading.finished
        return Completing(reading, 0, 0, completed, addresses(embedded, units, slot, None))
    begin = _begin_of_open_unit(columns, reading)
    belongs = (columns.fact("unit", begin) == reading.before.next_unit) & columns.fact("valid", begin).bool()
    open_unit = OpenUnit(embed(columns.fact("ids", begin)), columns.fact("local", begin), belongs)
    by_slot = addresses(embedded, units, slot, open_unit)
    finished = reading.finished
    completed = torch.cat((belongs & (finished > 0), (slot < finished) & units.valid), dim=1)
    return Completing(reading, begin, columns.count - begin, completed, by_slot)


def window_of(found: Completing) -> Window:
    """Keys are turned where their unit is completed."""
    angles = tuple(found.by_column(by_slot) for by_slot in found.by_slot)
    rotations = tuple(rotation_of(x) for x in angles)
    if found.completed is not None:
        rotations = tuple(x.only_where(found.completed) for x in rotations)
    return Window(found.begin, found.total, found.completed, angles, rotations)


class Anchored(NamedTuple):
    """A call whose open units begin at anchors; see :class:`contentrope.hf.frame.Frame`."""

    window: Window
    queries: tuple[Rotation, ...]
    places: tuple[Rotation, ...]
    spared: Spared
    recent: tuple[UnitsBefore, ...]
    standing: Standing | None
    """Of the open unit; None: the call may have completed some."""


def anchored(reading: Reading, addresses: Any, embed: Embed, anchors: Anchors, *, completes: bool) -> Anchored:
    recent = _recent(reading, addresses, anchors)
    frequencies = [rotations.inverse_frequency for rotations in addresses.rotations]
    columns, units, before, slot = reading.columns, reading.units, reading.before, reading.slot
    if columns is not None and not completes:
        standing = columns.standing or _standing(reading, recent, frequencies, anchors)
        window = Window(columns.count, columns.count + 1, None, (), standing.places)
        return Anchored(window, standing.places, *standing, recent, standing)
    found = completing(reading, addresses, embed)
    slots = found.by_slot[0].shape[1]
    length = unit_lengths(slot.clamp(max=slots - 1), units.valid, before.next_local, slots, addresses.dtype)
    begins = unit_begins(units, slot, slots)
    carried = [
        anchors.carried(known.then(address[:, :-1], length[:, :-1], begins[:, :-1]), before.next_unit, frequency)
        for known, address, frequency in zip(recent, found.by_slot, frequencies, strict=True)
    ]
    closes = units.closes[..., None, None]
    by_token = [(reading.by_token(a), reading.by_token(c)) for a, c in zip(found.by_slot, carried, strict=True)]
    newest = [known.then(address, length, begins) for known, address in zip(recent, found.by_slot, strict=True)]
    return Anchored(
        _anchored_window(found, carried),
        tuple(rotation_of(torch.where(closes, address, place)) for address, place in by_token),
        tuple(rotation_of(place) for _, place in by_token),
        spared_units(newest[0].start, slot, before.next_unit, anchors.back),
        tuple(known.after(reading.finished, anchors.reach) for known in newest),
        None,
    )


def _standing(
    reading: Reading, recent: tuple[UnitsBefore, ...], frequencies: list[Tensor], anchors: Anchors
) -> Standing:
    """Of a unit that is open before and after the call."""
    first = reading.before.next_unit
    places = tuple(
        rotation_of(anchors.carried(known, first, frequency))
        for known, frequency in zip(recent, frequencies, strict=True)
    )
    begins = torch.cat((recent[0].start, reading.units.start), dim=1)
    return Standing(places, spared_units(begins, torch.zeros_like(first), first, anchors.back))


def _anchored_window(found: Completing, carried: list[Tensor]) -> Window:
    """Keys are turned to where they stand after the call; those that were read before stand where their unit began."""
    addresses = tuple(found.by_column(by_slot) for by_slot in found.by_slot)
    places = tuple(found.by_column(by_slot) for by_slot in carried)
    is_new = (torch.arange(found.total - found.begin, device=places[0].device) >= found.old)[:, None, None]
    rotations = []
    for address, place in zip(addresses, places, strict=True):
        after = address if found.completed is None else torch.where(found.completed[..., None, None], address, place)
        rotations.append(rotation_of(after - torch.where(is_new, 0.0, place)))
    angles = tuple(address - place for address, place in zip(addresses, places, strict=True))
    return Window(found.begin, found.total, found.completed, angles, tuple(rotations), addresses)


def _recent(reading: Reading, addresses: Any, anchors: Anchors) -> tuple[UnitsBefore, ...]:
    """For each turning, as many completed units before the call as anchors look back."""
    columns, batch, device = reading.columns, len(reading.text.ids), reading.text.ids.device
    if columns is not None and columns.recent is not None:
        return columns.recent
    found = []
    for number, turning in enumerate(addresses.turnings):
        length = torch.zeros(batch, anchors.reach, dtype=addresses.dtype, device=device)
        address = length[..., None, None].expand(-1, -1, turning.heads, len(turning.frequency))
        none = UnitsBefore(address, length, length.long())
        found.append(none if columns is None else columns.units_before(reading.before.next_unit, number, none))
    return tuple(found)


def _begin_of_open_unit(columns: Columns, reading: Reading) -> int:
    """The first column of any row's open unit; a compiler is told one that lies left of it."""
    if torch.compiler.is_compiling():
        return max(columns.count - reading.longest + 1, 0)
    return reading.before.open_from()
