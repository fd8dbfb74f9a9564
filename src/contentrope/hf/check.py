"""The checks by which :func:`contentrope.hf.attach` tests the model at hand before it returns.

Architectures are many, and some do the unexpected with their queries and keys. So a few tokens show what an attached
model promises: (a) with zero addresses and global positions it is what it was, to the last
bit; (b) a unit whose address says "so many positions back" is read as by the untouched model at those positions;
(c) later tokens change nothing; (d) prefill, chunked prefill and decode agree, from the first token on.

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
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from contentrope.address import ContentAddress
from contentrope.errors import InputError
from contentrope.hf.adapter import Adapter
from contentrope.hf.addresses import NAME, Addresses
from contentrope.hf.attention import Carried
from contentrope.hf.probe import refuse_unless_finite, rotary_modules
from contentrope.hf.rotary import TOLERANCE
from contentrope.units import FixedLength, Segmenter

TOKENS = 24
ENDS = (1, 5, 9, 16)
"""Last tokens of units: one within each kind of piece, and units that go on from one to the next."""
PIECES = (1, 1, 1, 5, 1, 1, 14)
FIRST, AWAY = 9, 64
"""For (b): tokens of the first unit, and how far before the second it lies, if the model has as many positions."""
CHANGED = 14
"""For (c): the first token that is another one."""
AGAIN = 4
"""How many times the untouched model's own difference, measured once, is let pass."""
ALL = slice(None)

ALONE = {
    "competition": 0.0,
    "anchors": None,
    "segmenter": Segmenter(FixedLength(TOKENS), max_length=TOKENS),
    "missing": False,
}
"""Attributes of an adapter for (a) and (b): addresses and nothing else."""

Outputs = list[Float[Tensor, "batch seq dim"]]
"""Of all attention modules, in the order of their layers."""
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
        self.sample = _sample(adapter, most_positions)
        with _tapped(adapter.attention) as tapped:
            self.hidden = self._run("a text is read as before", self._leaping)
        refuse_unless_finite(adapter.model, [self.hidden, *tapped.outputs])
        self.inputs, self.untouched = tapped.inputs, tapped.outputs

    def __call__(self) -> None:
        """With the adapter's hooks in place. Leaves everything as it is, or raises an error."""
        device = self.sample.ids.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self._run("zero addresses at global positions change nothing", self.global_positions)
            self._run("an address of so many positions back is as good as positions", self.shifted)
            with self._as_if(self._as_if_trained(), missing=False):
                at_once = self._outputs()
                self._run("later tokens change nothing", lambda: self.later_tokens(at_once))
                self._run("a cache changes nothing", lambda: self.cached(at_once))

    def global_positions(self) -> None:
        """To the last bit, unless the untouched model itself differs from call to call."""

        def called_again() -> float:
            self.adapter.unhook()
            try:
                return _apart([self._leaping()], [self.hidden])[0]
            finally:
                self.adapter.hook()

        with self._untouched():
            hidden = self._leaping(self.sample.ends)
        if not torch.equal(hidden, self.hidden):
            self._compare([hidden], [self.hidden], noise=called_again, layers=False)

    def shifted(self) -> None:
        positions = self.sample.positions
        ends = torch.arange(TOKENS, device=positions.device)[None] == FIRST - 1
        with self._as_if(self._away(int(positions[0, FIRST])), gate=0.0, **ALONE):
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
        with _tapped(self.adapter.attention, [x[:, columns] for x in inputs or self.inputs]) as tapped:
            self._call(ids[:, columns], ends[:, columns], positions=positions, cache=cache)
        return tapped.outputs

    def _in_pieces(self) -> Outputs:
        cache = DynamicCache(config=self.adapter.model.config)
        parts = [self._outputs(slice(*ends), cache=cache) for ends in pairwise(accumulate(PIECES, initial=0))]
        return [torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True)]

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
                return _apart(one(), other())[0]

        return noise

    def _compare(
        self, found: Outputs, expected: Outputs, *, noise: Callable[[], float] | None = None, layers: bool = True
    ) -> None:
        """Refuse a difference beyond rounding, or beyond a few times the ``noise``."""
        by, worst = _apart(found, expected)
        allowed = TOLERANCE.get(expected[0].dtype, 0.0) if layers else 0.0
        if not by <= allowed and noise is not None:
            allowed = max(allowed, AGAIN * noise())
        if not by <= allowed:
            where = f" in layer {self.adapter.attention[worst].layer_idx}" if layers else ""
            raise _DiffersError(f"{where}, by {by:.2g} of the size where {allowed:.2g} is rounding")


class _DiffersError(Exception):
    """Says where, and by how much."""


def _apart(found: Outputs, expected: Outputs) -> tuple[float, int]:
    """The largest difference of a token's output, relative to its size, and the number of the module it is in."""
    errors = []
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = ours.double(), theirs.double()
        size = theirs.norm(dim=-1)
        error = (ours - theirs).norm(dim=-1) / (size + 0.01 * size.mean() + torch.finfo(torch.float64).tiny)
        errors.append(error.max().nan_to_num(nan=torch.inf))
    worst = torch.stack(errors)
    return float(worst.max()), int(worst.argmax())


class _Tapped(NamedTuple):
    inputs: Outputs
    outputs: Outputs


@contextmanager
def _tapped(modules: list[nn.Module], given: Outputs | None = None) -> Iterator[_Tapped]:
    """What goes into attention modules and comes out of them; ``given`` goes in instead."""
    tapped, handles = _Tapped([], []), []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        by_name = "hidden_states" in kwargs
        hidden = kwargs["hidden_states"] if by_name else args[0]
        if given is None:
            tapped.inputs.append(hidden.clone())
            return args, kwargs
        hidden = given[len(tapped.outputs)]
        return (args, {**kwargs, "hidden_states": hidden}) if by_name else ((hidden, *args[1:]), kwargs)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        tapped.outputs.append((output[0] if isinstance(output, tuple) else output).clone())

    for module in modules:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield tapped
    finally:
        for handle in handles:
            handle.remove()


def _sample(adapter: Adapter, most_positions: int | float) -> Sample:
    ids = torch.randint(len(adapter.embedding), (1, 2 * TOKENS), generator=torch.Generator().manual_seed(0))
    no_padding = ids[ids != getattr(adapter.model.config, "pad_token_id", None)][None]
    ids = (no_padding if no_padding.shape[1] >= TOKENS else ids)[:, :TOKENS]
    column = torch.arange(TOKENS)[None]
    away = max(FIRST, int(min(AWAY, most_positions - TOKENS + FIRST)))
    positions = torch.where(column < FIRST, column, column - FIRST + away)
    ends = torch.isin(column, torch.tensor(ENDS))
    return Sample(*(x.to(adapter.embedding.device) for x in (ids, ends, positions)))
