"""The checks by which :func:`contentrope.hf.attach` tests the model at hand before it returns.

Architectures are many, and some do the unexpected with their queries and keys. So a few tokens show what an attached
model promises: (a) with zero addresses and global positions it is what it was, to the last
bit; (b) a unit whose address says "so many positions back" is read as by the untouched model at those positions;
(c) later tokens change nothing; (d) prefill, chunked prefill and decode agree, from the first token on.

With a near window (a) is that a text which fits into it is read as before, whatever the addresses. The other checks are
made with a window of a few tokens in place of the adapter's, so that units leave it.

Every attention module gets the input it had in the untouched model, and its output is compared. So rounding does not
add up over layers, no expert is chosen otherwise, and the layer at fault is known. A difference beyond rounding is
compared with the untouched model's own, when it computes the same in two ways.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import DynamicCache

from contentrope.address import ContentAddress
from contentrope.errors import InputError
from contentrope.hf.adapter import Adapter
from contentrope.hf.addresses import NAME, Addresses
from contentrope.hf.attention import Carried
from contentrope.hf.outputs import Outputs, apart, tapped
from contentrope.hf.probe import refuse_unless_finite, rotary_modules
from contentrope.hf.rotary import TOLERANCE
from contentrope.units import FixedLength, Segmenter

TOKENS = 24
ENDS = (1, 5, 8, 13)
"""Last tokens of units: one within each kind of piece, and units that go on from one to the next. With a window units
leave it within each kind of piece too, and of two one begins just inside, one just beyond."""
PIECES = (1, 1, 1, 5, 1, 1, 14)
FIRST, AWAY = 9, 64
"""For (b): tokens of the first unit, and how far before the second it lies, if the model has as many positions."""
WINDOW = 4
"""Tokens of the near window for (b), (c) and (d): the first unit of (b) is not in it."""
CHANGED = 12
"""For (c): the first token that is another one, in the middle of a unit."""
AGAIN = 4
"""How many times the untouched model's own difference, measured once, is let pass."""
ALL = slice(None)

ALONE = {
    "competition": 0.0,
    "window": 0,
    "segmenter": Segmenter(FixedLength(TOKENS), max_length=TOKENS),
    "missing": False,
}
"""Attributes of an adapter for (a) and (b): addresses and nothing else."""

Result = TypeVar("Result")


class Sample(NamedTuple):
    ids: Int[Tensor, "1 seq"]
    ends: Bool[Tensor, "1 seq"]
    positions: Int[Tensor, "1 seq"]
    """With the second unit of (b) moved away."""


class Away(Addresses):
    """Every completed unit is so many positions back."""

    positions = 0

    def forward(self, embedded: Tensor, units: Any, slot: Tensor, open_unit: Any) -> list[Tensor]:
        shape = slot.shape[0], slot.shape[1], -1, -1
        angles = (-self.positions * rotary.frequency.expand(rotary.heads, -1) for rotary in self.rotaries)
        return [x.to(embedded.device, self.dtype)[None, None].expand(shape) for x in angles]

    def are_zero(self) -> bool:
        return self.positions == 0


class Check:
    """Made while the model is untouched, whose outputs it keeps for comparison."""

    def __init__(self, adapter: Adapter, most_positions: int | float) -> None:
        self.adapter = adapter
        self.window = min(adapter.window, WINDOW)
        self.sample = _sample(adapter, most_positions)
        with tapped(adapter.attention) as seen:
            self.hidden = self._run("a text is read as before", self._leaping)
        refuse_unless_finite(adapter.model, [self.hidden, *seen.outputs])
        self.inputs, self.untouched = seen.inputs, seen.outputs

    def __call__(self) -> None:
        """With the adapter's hooks in place. Leaves everything as it is, or raises an error."""
        device = self.sample.ids.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            if self.adapter.window:
                self._run("a text that fits into the window is read as before", self.short_text)
            else:
                self._run("zero addresses at global positions change nothing", self.global_positions)
            self._run("an address of so many positions back is as good as positions", self.shifted)
            with self._as_if(self._as_if_trained(), missing=False, window=self.window):
                at_once = self._outputs()
                self._run("later tokens change nothing", lambda: self.later_tokens(at_once))
                self._run("a cache changes nothing", lambda: self.cached(at_once))

    def global_positions(self) -> None:
        with self._untouched():
            hidden = self._leaping(self.sample.ends)
        self._as_before(hidden)

    def short_text(self) -> None:
        """With addresses as if trained."""
        with self._as_if(self._as_if_trained(), **{**ALONE, "window": TOKENS}):
            hidden = self._leaping(self.sample.ends)
        self._as_before(hidden)

    def _as_before(self, hidden: Tensor) -> None:
        """To the last bit, unless the untouched model itself differs from call to call."""

        def called_again() -> float:
            self.adapter.unhook()
            try:
                return apart([self._leaping()], [self.hidden])[0]
            finally:
                self.adapter.hook()

        if not torch.equal(hidden, self.hidden):
            self._compare([hidden], [self.hidden], noise=called_again, layers=False)

    def shifted(self) -> None:
        """Beyond the window, an address counts from where it begins."""
        positions = self.sample.positions
        ends = torch.arange(TOKENS, device=positions.device)[None] == FIRST - 1
        away = self._away(int(positions[0, FIRST]) - self.window)
        with self._as_if(away, gate=0.0, **{**ALONE, "window": self.window}), self._rotated_without_leap():
            found = self._outputs(ends=ends, positions=positions)
        self._compare(found, self.untouched, noise=self._noise(self._rounded_otherwise, lambda: self.untouched))

    def later_tokens(self, at_once: Outputs) -> None:
        """Whatever the untouched model does: one that reads ahead cannot be attached to."""
        ids, inputs = self.sample.ids.clone(), [x.clone() for x in self.inputs]
        ids[:, CHANGED:] = ids[:, : TOKENS - CHANGED]
        for x in inputs:
            x[:, CHANGED:] = -x[:, CHANGED:].flip(1)
        found = [x[:, :CHANGED] for x in self._outputs(ids=ids, inputs=inputs)]
        self._compare(found, [x[:, :CHANGED] for x in at_once])

    def cached(self, at_once: Outputs) -> None:
        def first_alone() -> Outputs:
            return self._outputs(slice(1))

        noise = self._noise(self._in_pieces, self._outputs)
        self._compare(self._in_pieces(), at_once, noise=noise)
        noise = self._noise(first_alone, lambda: [x[:, :1] for x in self._outputs()])
        self._compare(first_alone(), [x[:, :1] for x in at_once], noise=noise)

    # --- ways to read the sample ---

    def _outputs(
        self,
        columns: slice = ALL,
        *,
        ids: Tensor | None = None,
        ends: Tensor | None = None,
        positions: Tensor | None = None,
        inputs: Outputs | None = None,
        cache: DynamicCache | None = None,
    ) -> Outputs:
        """Of these columns; ``inputs`` of the attention modules, if they are not to be those of the untouched model."""
        ids, ends = self.sample.ids if ids is None else ids, self.sample.ends if ends is None else ends
        with tapped(self.adapter.attention, [x[:, columns] for x in inputs or self.inputs]) as seen:
            self._call(ids[:, columns], ends[:, columns], positions=positions, cache=cache)
        return seen.outputs

    def _in_pieces(self) -> Outputs:
        cache = DynamicCache(config=self.adapter.model.config)
        parts = [self._outputs(slice(*ends), cache=cache) for ends in pairwise(accumulate(PIECES, initial=0))]
        return [torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True)]

    @contextmanager
    def _rotated_without_leap(self) -> Iterator[None]:
        """With a window, rotary embeddings count the tokens; what else reads positions, as scaled queries do, leaps."""
        counted = torch.arange(TOKENS, device=self.sample.ids.device)[None]

        def count(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if "position_ids" in kwargs:
                return args, {**kwargs, "position_ids": counted}
            return (args[0], counted, *args[2:]), kwargs

        modules = rotary_modules(self.adapter.decoder) if self.window else []
        handles = [m.register_forward_pre_hook(count, with_kwargs=True) for m in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _rounded_otherwise(self) -> Outputs:
        """As rotating twice instead of once rounds queries and keys."""
        generator = torch.Generator().manual_seed(0)

        def round_otherwise(module: nn.Module, args: Any, cos_sin: tuple[Tensor, ...]) -> Any:
            noise = (torch.randn(x.shape, generator=generator).to(x) for x in cos_sin)
            rounded = tuple(x * (1 + torch.finfo(x.dtype).eps * n) for x, n in zip(cos_sin, noise, strict=True))
            return Carried(rounded, cos_sin.call) if isinstance(cos_sin, Carried) else rounded

        handles = [m.register_forward_hook(round_otherwise) for m in rotary_modules(self.adapter.decoder)]
        try:
            return self._outputs(positions=self.sample.positions)
        finally:
            for handle in handles:
                handle.remove()

    def _leaping(self, ends: Tensor | None = None) -> Tensor:
        """The last hidden state, with the second unit of (b) moved away."""
        return self._call(self.sample.ids, ends, positions=self.sample.positions)

    def _call(
        self,
        ids: Tensor,
        ends: Tensor | None,
        *,
        positions: Tensor | None = None,
        cache: DynamicCache | None = None,
    ) -> Tensor:
        more: dict[str, Any] = {} if ends is None else {"unit_ends": ends}
        if positions is not None:
            # With a mask positions that leap are not read as several documents.
            more |= {"position_ids": positions, "attention_mask": torch.ones_like(ids)}
        if cache is not None:
            more |= {"past_key_values": cache}
        return cast(Tensor, self.adapter.decoder(input_ids=ids, use_cache=cache is not None, **more)[0])

    # --- adapters that are tried ---

    @contextmanager
    def _as_if(self, addresses: Addresses, **changes: Any) -> Iterator[None]:
        adapter, own = self.adapter, getattr(self.adapter.model, NAME)
        kept = {name: getattr(adapter, name) for name in changes}
        try:
            adapter.model.add_module(NAME, addresses)
            vars(adapter).update(changes)
            yield
        finally:
            vars(adapter).update(kept)
            adapter.model.add_module(NAME, own)

    def _untouched(self) -> Any:
        return self._as_if(self._away(0), gate=1.0, **ALONE)

    def _away(self, positions: int) -> Addresses:
        weight = self.adapter.embedding
        made = Away(self.adapter.rotaries, weight.shape[1], TOKENS)
        made.positions = positions
        return made.to(weight.device, self.adapter.addresses.dtype)

    def _as_if_trained(self) -> Addresses:
        """Addresses with angles of about one radian."""
        generator, made = torch.Generator().manual_seed(0), copy.deepcopy(self.adapter.trained)
        for address in made.by_turning:  # type: ignore[union-attr]
            weight = cast(ContentAddress, address).project.weight
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
        return cast(Addresses, made)

    # --- comparing ---

    def _run(self, name: str, check: Callable[[], Result]) -> Result:
        model = type(self.adapter.model).__name__
        try:
            return check()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except _DiffersError as found:
            raise InputError(
                f"{model} cannot be attached to: that {name} does not hold{found}; check=False attaches nevertheless"
            ) from None
        except Exception as error:
            raise InputError(
                f"{model} cannot be attached to: while it was checked that {name}, it failed with "
                f"{type(error).__name__}: {error}"
            ) from error

    def _noise(self, one: Callable[[], Outputs], other: Callable[[], Outputs]) -> Callable[[], float]:
        """How far two ways to compute the same are apart in the untouched model."""

        def noise() -> float:
            with self._untouched():
                return apart(one(), other())[0]

        return noise

    def _compare(
        self, found: Outputs, expected: Outputs, *, noise: Callable[[], float] | None = None, layers: bool = True
    ) -> None:
        """Refuse a difference beyond rounding, or beyond a few times the ``noise``."""
        by, worst = apart(found, expected)
        allowed = TOLERANCE.get(expected[0].dtype, 0.0) if layers else 0.0
        if not by <= allowed and noise is not None:
            allowed = max(allowed, AGAIN * noise())
        if not by <= allowed:
            where = f" in layer {self.adapter.attention[worst].layer_idx}" if layers else ""
            raise _DiffersError(f"{where}, by {by:.2g} of the size where {allowed:.2g} is rounding")


class _DiffersError(Exception):
    """Says where, and by how much."""


def _sample(adapter: Adapter, most_positions: int | float) -> Sample:
    ids = torch.randint(len(adapter.embedding), (1, 2 * TOKENS), generator=torch.Generator().manual_seed(0))
    no_padding = ids[ids != getattr(adapter.model.config, "pad_token_id", None)][None]
    ids = (no_padding if no_padding.shape[1] >= TOKENS else ids)[:, :TOKENS]
    column = torch.arange(TOKENS)[None]
    readers = [token for token in adapter.segmenter.reader.ids if token < len(adapter.embedding)]
    if readers:  # the first unit is memory, all others read it
        ids[:, ENDS[0] + 1] = readers[0]
    away = max(FIRST, int(min(AWAY, most_positions - TOKENS + FIRST)))
    positions = torch.where(column < FIRST, column, column - FIRST + away)
    ends = torch.isin(column, torch.tensor(ENDS))
    return Sample(*(x.to(adapter.embedding.device) for x in (ids, ends, positions)))
