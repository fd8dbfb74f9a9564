"""A set of stored units as the KV cache of a model: in one order, by key, however the set was put together.

The units come first and are the *set*; what the model reads after them comes behind. The set can be edited as long as
nothing was read behind it, or after :meth:`SetCache.rewind`. Keys and values of the units that stay are copied as they
are, never computed anew, so an edited cache has the bits of a fresh one.

Shapes: slots are keys and values of layers, two for each; columns are those of the set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from contentrope.cache import Columns
from contentrope.errors import CacheError, InputError, quoted
from contentrope.hf.adapter import Adapter
from contentrope.hf.state import ColumnsLayer, columns_layer
from contentrope.store.groups import Piece
from contentrope.store.units import Layout

Documents = dict[str, list[str]]
Spans = dict[str, tuple[int, int]]
Pair = tuple[Tensor, Tensor]


class Shelf(Protocol):
    """What a cache needs of a store."""

    adapter: Adapter
    layout: Layout

    def units_of(self, documents: Iterable[str]) -> dict[str, list[str]]: ...

    def read(self, units: Sequence[str]) -> dict[str, Piece]: ...


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
            if self.tokens:
                self._set(index, *self._held(index))
            else:
                layer.reset()
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
        new = self.shelf.read([unit for unit in units if unit not in self._spans])
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
        super().reset()
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
        """All rows, from the store; a unit that several rows have is read once."""
        orders = [_in_order(row) for row in self.rows]
        found = self.shelf.read(list(dict.fromkeys(unit for units in orders for unit in units)))
        rows = [[found[unit] for unit in units] for units in orders]
        lengths = [sum(len(piece.ids) for piece in row) for row in rows]
        count, device = max(lengths), self.shelf.adapter.embedding.device
        self._whole, self._spans = {}, {}
        if count:
            states = [_padded([_joined(row, n) for row in rows], count).to(device) for n in range(self._kinds)]
            for index in range(len(self.layers) - 1):
                self._set(index, *self._pair(states, index))
        columns = torch.zeros(3, len(rows), count, dtype=torch.int64)
        for (ids, ends, valid), row, length in zip(columns.unbind(1), rows, lengths, strict=True):
            spans = _spans((piece.ids for piece in row), count - length)
            ids[count - length :] = torch.cat([piece.ids for piece in row]) if row else ids[:0]
            ends[[end - 1 for _, end in spans]] = 1
            valid[count - length :] = 1
        ids, ends, valid = columns.to(device)
        self._note(ids, ends.bool(), None if min(lengths) == count else valid.bool())
        if len(rows) == 1:
            self._spans = dict(zip(orders[0], _spans(piece.ids for piece in rows[0]), strict=True))

    def _splice(self, units: list[str], new: dict[str, Piece]) -> None:
        """The only row: units that stay from the cache, new ones from the store."""
        device = self.shelf.adapter.embedding.device
        pieces, coming = list(new.values()), dict(zip(new, _spans(x.ids for x in new.values()), strict=True))
        fresh = [_joined(pieces, n).to(device)[:, None] for n in range(self._kinds)] if new else []
        runs = _runs(units, self._spans, coming)
        for index, layer in enumerate(self.layers[:-1]):
            held = self._held(index) if self._spans else None
            if units:
                self._set(index, *_spliced(runs, held, self._pair(fresh, index) if new else None))
            else:
                layer.reset()
                self._whole.clear()
        assert self.state.columns is not None
        (held_ids,) = self.state.columns.fact("ids", 0, self.tokens)
        new_ids = torch.cat([piece.ids for piece in pieces]).to(held_ids) if new else held_ids[:0]
        ids = torch.cat([held_ids[:0], *((new_ids if run.is_new else held_ids)[run.begin : run.end] for run in runs)])
        lengths = ((coming[unit] if unit in coming else self._spans[unit]) for unit in units)
        self._spans = dict(zip(units, _spans(range(*span) for span in lengths), strict=True))
        ends = torch.zeros(1, len(ids), dtype=torch.bool)
        ends[0, [end - 1 for _, end in self._spans.values()]] = True
        self._note(ids[None], ends.to(device), None)

    def _note(self, ids: Int[Tensor, "rows columns"], ends: Tensor, valid: Tensor | None) -> None:
        adapter = self.shelf.adapter
        self.state.columns = Columns.of_memory(adapter.segmenter, adapter.window, ids, ends, valid)

    def _held(self, index: int) -> Pair:
        """Keys and values of the set in a layer."""
        if index in self._whole:
            return self._whole[index]
        layer: Any = self.layers[index]
        return layer.keys[:, :, : self.tokens], layer.values[:, :, : self.tokens]

    def _set(self, index: int, keys: Tensor, values: Tensor) -> None:
        """Give a layer the set's keys and values, as if it had been handed them."""
        layer: Any = self.layers[index]
        if not layer.is_initialized:
            layer.lazy_initialization(keys, values)
        if isinstance(layer, DynamicSlidingWindowLayer):
            self._whole[index], layer.cumulative_length = (keys, values), keys.shape[2]
            keys, values = (x[:, :, -layer.sliding_window + 1 :] for x in (keys, values))
        layer.keys, layer.values = keys, values

    @property
    def _kinds(self) -> int:
        return len(self.shelf.layout.kinds)

    def _pair(self, states: list[Tensor], index: int) -> Pair:
        """Of a layer, from tensors of many."""
        (kind, keys), (other, values) = (self.shelf.layout.place[slot] for slot in (2 * index, 2 * index + 1))
        return states[kind][keys], states[other][values]


def _listed(documents: str | Iterable[str]) -> list[str]:
    return [documents] if isinstance(documents, str) else list(documents)


def _in_order(documents: Documents) -> list[str]:
    """The units of a set, each once."""
    return sorted({unit for units in documents.values() for unit in units})


def _spans(units: Iterable[Sized], begin: int = 0) -> list[tuple[int, int]]:
    """The columns of units that lie one behind the other."""
    edges = [begin, *accumulate((len(unit) for unit in units), initial=begin)][1:]
    return list(pairwise(edges))


def _runs(units: list[str], held: Spans, coming: Spans) -> list[Run]:
    """The order of units as few pieces of what there is."""
    runs: list[Run] = []
    for unit in units:
        run = Run(unit in coming, *(coming[unit] if unit in coming else held[unit]))
        if runs and runs[-1].is_new == run.is_new and runs[-1].end == run.begin:
            run = runs.pop()._replace(end=run.end)
        runs.append(run)
    return runs


def _spliced(runs: list[Run], held: Pair | None, coming: Pair | None) -> Pair:
    """Copies, so that what is dropped is freed."""

    def one(index: int) -> Tensor:
        sources = [None if pair is None else pair[index] for pair in (held, coming)]
        parts = [cast(Tensor, sources[run.is_new])[:, :, run.begin : run.end] for run in runs]
        return torch.cat(parts, dim=2)

    return one(0), one(1)


def _joined(pieces: list[Piece], kind: int) -> Float[Tensor, "slots kv_heads columns head_dim"]:
    return torch.cat([piece.states[kind] for piece in pieces], dim=2) if pieces else torch.empty(0)


def _padded(rows: list[Tensor], count: int) -> Float[Tensor, "slots rows kv_heads columns head_dim"]:
    """Padded on the left with zeros, which nobody reads."""
    if len(rows) == 1:
        return rows[0][:, None]
    some = next(row for row in rows if row.numel())
    padded = some.new_zeros(some.shape[0], len(rows), some.shape[1], count, some.shape[3])
    for place, row in zip(padded.unbind(1), rows, strict=True):
        if row.numel():
            place[:, :, count - row.shape[2] :].copy_(row)
    return padded
