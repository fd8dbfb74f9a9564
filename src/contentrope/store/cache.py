"""A set of stored units as the KV cache of a model: in one order, by key, however the set was put together.

The units come first and are the *set*; what the model reads after them comes behind. The set can be edited as long as
nothing was read behind it, or after :meth:`SetCache.rewind`. Keys and values of the units that stay are copied as they
are, never computed anew, so an edited cache has the bits of a fresh one.

Shapes: columns are those of the set.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from contentrope.cache import Columns
from contentrope.errors import CacheError, InputError, quoted
from contentrope.hf.state import ColumnsLayer, columns_layer
from contentrope.store.catalog import keys_of
from contentrope.store.filling import Filled, Shelf, Spans, filled, spans_of
from contentrope.store.layers import RoomyLayer, with_room

Documents = dict[str, list[str]]
Pair = tuple[Tensor, Tensor]


class Run(NamedTuple):
    """Columns that are copied together, from the cache as it is or from what comes in."""

    is_new: bool
    begin: int
    end: int


class SetCache(DynamicCache):
    """Made by :meth:`UnitStore.cache`; goes wherever a ``DynamicCache`` goes."""

    def __init__(self, shelf: Shelf, rows: Sequence[Iterable[str]]) -> None:
        """``rows``: documents; the sets of several rows are padded on the left."""
        super().__init__(config=shelf.adapter.model.config.get_text_config())
        self.shelf = shelf
        self.rows = [shelf.units_of(dict.fromkeys(documents)) for documents in rows]
        """Of each row, the units of every document."""
        self.state: ColumnsLayer = columns_layer(self, shelf.adapter.keeping, shelf.adapter.rotary_by_layer)
        self.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in self.layers]
        self.state.layers = self.layers[:-1]
        self._spans: Spans
        """With one row, the columns of every unit, in their order."""
        self._whole: dict[int, Pair]
        """The set's keys and values in layers with a sliding window of attention, which let go of them."""
        self._half_edited = False
        """True while an edit goes through the layers; one that fails in between leaves it so."""
        self._fill()

    @property
    def documents(self) -> list[str]:
        """Of the only row, by key."""
        return sorted(self._only_row())

    @property
    def tokens(self) -> int:
        """Columns of the set."""
        columns = self.state.columns
        return 0 if columns is None or columns.floor is None else columns.floor.count

    @property
    def spans(self) -> Spans:
        """With one set, the columns of every unit, in their order."""
        return dict(self._spans)

    @property
    def has_sliding(self) -> bool:
        """Whether layers have a sliding window of attention."""
        return any(isinstance(layer, DynamicSlidingWindowLayer) for layer in self.layers)

    @property
    def has_read_on(self) -> bool:
        """Whether something was read behind the set."""
        return self.state.get_seq_length() > self.tokens

    @property
    def nbytes(self) -> int:
        """Of memory for keys and values, the room behind them among it."""
        memory = (x.untyped_storage() for x in self._tensors())
        return sum({x.data_ptr(): x.nbytes() for x in memory}.values())

    def copied(self, rows: int = 1) -> SetCache:
        """A cache of its own with so many rows for each of this one's, for questions to be read behind; this one stays
        as it is."""
        shared = {id(x): x for x in self._tensors()}  # copied once, by repeating them
        made: SetCache = copy.deepcopy(self, shared)
        made.batch_repeat_interleave(rows)
        return made

    def _tensors(self) -> list[Tensor]:
        layers: list[Any] = self.layers[:-1]
        held = [x for layer in layers if layer.is_initialized for x in (layer.keys, layer.values)]
        return [*held, *(x for pair in self._whole.values() for x in pair)]

    # --- editing ---

    def insert(self, documents: str | Iterable[str]) -> None:
        """Add documents; those that are in the set already are there once."""
        self._edit({**self._only_row(), **self.shelf.units_of(_listed(documents))})

    def remove(self, documents: str | Iterable[str]) -> None:
        self._edit(self._without(_listed(documents)))

    def replace(self, old: str, new: str) -> None:
        """One document by another, in one step."""
        self._edit({**self._without([old]), **self.shelf.units_of([new])})

    def rewind(self) -> None:
        """Forget what was read behind the set, a call that failed among it."""
        if self._half_edited:
            self.state.refuse_if_half_rotated()
        self.state.half_rotated = False  # a call rotates no key of the set
        for index, layer in enumerate(self.layers[:-1]):
            if isinstance(layer, RoomyLayer) and self.tokens:
                layer.shorten(self.tokens)
            elif self.tokens:
                self._set(index, *self._held(index), self.tokens)
            else:
                _empty(layer)
        assert self.state.columns is not None
        self.state.columns.truncate(self.tokens)

    def _without(self, documents: list[str]) -> Documents:
        left = dict(self._only_row())
        for key in documents:
            if left.pop(key, None) is None:
                raise InputError(f"{quoted(key)} is no document of this cache, or named twice; see cache.documents")
        return left

    def _only_row(self) -> Documents:
        if len(self.rows) != 1 or (self.state.columns is not None and self.state.columns.batch != 1):
            raise CacheError("this cache has several rows; a set is edited in a cache of one row, store.cache(keys)")
        return self.rows[0]

    def _edit(self, documents: Documents) -> None:
        if self.has_read_on:
            raise CacheError(
                "something was read behind the set, and it was read from the set as it was: call rewind() first, then "
                "read it again"
            )
        self.state.refuse_if_half_rotated()
        units = _in_order(documents)
        missing = [unit for unit in units if unit not in self._spans]
        new = filled(self.shelf, [missing], lambda slot, columns: columns) if missing else None
        self._half_edited = self.state.half_rotated = True
        self._splice(units, new)
        self.rows, self._half_edited, self.state.half_rotated = [documents], False, False

    # --- what is done to any cache ---

    def crop(self, tokens_to_remove: int) -> None:
        """Down to the set and no further."""
        read = self.state.get_seq_length()
        kept = read + tokens_to_remove if tokens_to_remove <= 0 else min(tokens_to_remove, read)
        if kept < self.tokens:
            raise CacheError(f"{self.tokens} tokens are stored units, so {kept} cannot be kept; use remove()")
        if kept == self.tokens:
            return self.rewind()
        return super().crop(tokens_to_remove)

    def activate_past_recording(self) -> None:
        """Assisted decoding begins with it."""
        super().activate_past_recording()
        self.state.is_assisted = True

    def reset(self) -> None:
        """To the empty set."""
        for layer in self.layers[:-1]:
            _empty(layer)
        self.state.reset()
        self.rows = [{}]
        self._fill()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(cast(torch.LongTensor, beam_idx))
        self._select(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._select(lambda x: x[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._select(lambda x: x.repeat_interleave(repeats, dim=0))

    def _select(self, change: Callable[[Tensor], Tensor]) -> None:
        self._whole = {index: (change(keys), change(values)) for index, (keys, values) in self._whole.items()}

    # --- filling ---

    def _fill(self) -> None:
        """All rows, from the store; a unit that several rows have is read, moved and decoded once."""
        orders = [_in_order(row) for row in self.rows]
        self._whole, self._spans = {}, {}
        found = filled(self.shelf, orders, self._room)
        if found.columns:
            for index in range(len(self.layers) - 1):
                self._set(index, *_pair(found, index), found.columns)
        ends, valid = (torch.zeros(found.ids.shape, dtype=torch.bool) for _ in range(2))
        for row, spans in enumerate(found.rows):
            ends[row, [end - 1 for _, end in spans.values()]] = True
            valid[row, found.columns - sum(end - begin for begin, end in spans.values()) :] = True
        device = found.ids.device
        self._note(found.ids, ends.to(device), None if bool(valid.all()) else valid.to(device))
        if len(orders) == 1:
            (self._spans,) = found.rows

    def _splice(self, units: list[str], new: Filled | None) -> None:
        """The only row: units that stay from the cache, new ones from the store."""
        coming: Spans = {} if new is None else new.rows[0]
        runs = _runs(units, self._spans, coming)
        columns = sum(run.end - run.begin for run in runs)
        for index, layer in enumerate(self.layers[:-1]):
            if units:
                held = self._held(index) if self._spans else None
                pair = _spliced(runs, held, new and _pair(new, index), self._room(2 * index, columns))
                self._set(index, *pair, columns)
            else:
                _empty(layer)
                self._whole.clear()
        assert self.state.columns is not None
        (held_ids,) = self.state.columns.fact("ids", 0, self.tokens)
        new_ids = held_ids[:0] if new is None else new.ids[0]
        ids = torch.cat([held_ids[:0], *((new_ids if run.is_new else held_ids)[run.begin : run.end] for run in runs)])
        edges = ((coming[unit] if unit in coming else self._spans[unit]) for unit in units)
        lengths = (end - begin for begin, end in edges)
        self._spans = spans_of(dict(zip(units, lengths, strict=True)))
        ends = torch.zeros(1, len(ids), dtype=torch.bool)
        ends[0, [end - 1 for _, end in self._spans.values()]] = True
        self._note(ids[None], ends.to(ids.device), None)

    def _note(self, ids: Int[Tensor, "rows columns"], ends: Tensor, valid: Tensor | None) -> None:
        adapter = self.shelf.adapter
        self.state.columns = Columns.of_memory(adapter.segmenter, adapter.window, ids, ends, valid)

    def _held(self, index: int) -> Pair:
        """Keys and values of the set in a layer."""
        if index in self._whole:
            return self._whole[index]
        layer: Any = self.layers[index]
        return layer.keys[:, :, : self.tokens], layer.values[:, :, : self.tokens]

    def _set(self, index: int, keys: Tensor, values: Tensor, columns: int) -> None:
        """Give a layer the set's keys and values, the first columns of these, as if it had been handed them."""
        layer: Any = self.layers[index]
        if not layer.is_initialized:
            layer.lazy_initialization(keys, values)
        if isinstance(layer, RoomyLayer):
            layer.take(keys, values, columns)
            return
        if isinstance(layer, DynamicSlidingWindowLayer):
            self._whole[index], layer.cumulative_length = (keys, values), columns
            keys, values = (x[:, :, -layer.sliding_window + 1 :] for x in (keys, values))
        layer.keys, layer.values = keys, values

    def _room(self, slot: int, columns: int) -> int:
        return with_room(columns) if isinstance(self.layers[slot // 2], RoomyLayer) else columns


def _listed(documents: str | Iterable[str]) -> list[str]:
    return [documents] if isinstance(documents, str) else keys_of(documents)


def _empty(layer: Any) -> None:
    """Drop what it holds, which earlier versions of transformers only set to zero."""
    layer.keys = layer.values = None
    layer.is_initialized = False
    layer.reset()


def _in_order(documents: Documents) -> list[str]:
    """The units of a set, each once."""
    return sorted({unit for units in documents.values() for unit in units})


def _runs(units: list[str], held: Spans, coming: Spans) -> list[Run]:
    """The order of units as few pieces of what there is."""
    runs: list[Run] = []
    for unit in units:
        run = Run(unit in coming, *(coming[unit] if unit in coming else held[unit]))
        if runs and runs[-1].is_new == run.is_new and runs[-1].end == run.begin:
            run = runs.pop()._replace(end=run.end)
        runs.append(run)
    return runs


def _spliced(runs: list[Run], held: Pair | None, coming: Pair | None, room: int) -> Pair:
    """Copies, so that what is dropped is freed."""

    def one(index: int) -> Tensor:
        sources = [None if pair is None else pair[index] for pair in (held, coming)]
        some = next(x for x in sources if x is not None)
        made, begin = some.new_empty(*some.shape[:2], room, some.shape[3]), 0
        for run in runs:
            end = begin + run.end - run.begin
            made[:, :, begin:end].copy_(cast(Tensor, sources[run.is_new])[:, :, run.begin : run.end])
            begin = end
        return made

    return one(0), one(1)


def _pair(found: Filled, index: int) -> Pair:
    """Of a layer."""
    return found.states[2 * index], found.states[2 * index + 1]
