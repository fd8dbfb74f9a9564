"""What :func:`contentrope.hf.attach` makes sure of, on the model at hand, before it returns.

Architectures are many, and some do with their queries and keys what nobody expects. So a model is asked to show, on a
few tokens, what an attached model promises: (a) with zero addresses and global positions it is what it was, to the last
bit; (b) a unit whose address says "so many positions back" is read as by the untouched model at those positions;
(c) later tokens change nothing; (d) a cache gives what a text read at once gives, in chunks, token by token, and from
its first token on.

Every attention module is handed the input it had in the untouched model, and its output is compared. So rounding does
not add up over layers, no expert is chosen otherwise, and the layer at fault is known. What is beyond rounding is
measured against what the untouched model itself shows when it is asked the same in the other way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, cast

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
"""How much more than the untouched model's own difference is let pass: it was measured once."""

ALONE = {
    "competition": 0.0,
    "anchors": None,
    "segmenter": Segmenter(FixedLength(TOKENS), max_length=TOKENS),
    "missing": False,
}
"""What an adapter is to have for (a) and (b): addresses and nothing else."""

Outputs = list[Float[Tensor, "batch seq dim"]]
"""Of all attention modules, in the order of their layers."""


class Text(NamedTuple):
    ids: Int[Tensor, "1 seq"]
    ends: Bool[Tensor, "1 seq"]
    positions: Int[Tensor, "1 seq"]
    """With the second unit of (b) moved away."""


class Away(Addresses):
    """Every completed unit is so many positions back."""

    positions = 0

    def forward(self, embedded: Tensor, units: Any, slot: Tensor, open_unit: Any) -> list[Tensor]:
        shape = slot.shape[0], slot.shape[1], -1, -1
        angles = (-self.positions * turning.frequency.expand(turning.heads, -1) for turning in self.turnings)
        return [x.to(embedded.device, self.dtype)[None, None].expand(shape) for x in angles]

    def are_zero(self) -> bool:
        return self.positions == 0


class Check:
    """Made while the model is untouched, of which it keeps what is compared with."""

    def __init__(self, adapter: Adapter, most_positions: float) -> None:
        self.adapter = adapter
        self.text = _text(adapter, most_positions)
        with _tapped(adapter.attention) as tapped:
            self._run("a text is read as before", self._read_untouched)
        refuse_unless_finite(adapter.model, [self.hidden, *tapped.outputs])
        self.inputs, self.untouched = tapped.inputs, tapped.outputs

    def _read_untouched(self) -> None:
        self.hidden = self._call(positions=self.text.positions)

    def __call__(self) -> None:
        """With the adapter's hooks in place. Leaves everything as it is, or raises an error."""
        with random_numbers_restored(self.text.ids.device):
            self._run_all()

    def _run_all(self) -> None:
        self._run("zero addresses at global positions change nothing", self.global_positions)
        self._run("an address of so many positions back is as good as positions", self.shifted)
        with self._as_if(self._lively(), missing=False):
            at_once = self._outputs()
            self._run("later tokens change nothing", lambda: self.later_tokens(at_once))
            self._run("a cache changes nothing", lambda: self.cached(at_once))

    def global_positions(self) -> None:
        """To the last bit, unless the untouched model itself says something else when asked again."""

        def asked_again() -> float:
            self.adapter.unhook()
            try:
                return _apart([self._call(positions=self.text.positions)], [self.hidden])[0]
            finally:
                self.adapter.hook()

        with self._untouched():
            hidden = self._call(ends=self.text.ends, positions=self.text.positions)
        if not torch.equal(hidden, self.hidden):
            self._compare([hidden], [self.hidden], noise=asked_again, layers=False)

    def shifted(self) -> None:
        adapter, positions = self.adapter, self.text.positions
        away = self._away(int(positions[0, FIRST]), TOKENS)
        ends = torch.arange(TOKENS, device=positions.device)[None] == FIRST - 1
        with self._as_if(away, gate=0.0, **ALONE):
            found = self._outputs(ends=ends, positions=positions)
        noise = self._noise(lambda: self._rounded_otherwise(adapter), lambda: self.untouched)
        self._compare(found, self.untouched, noise=noise)

    def later_tokens(self, at_once: Outputs) -> None:
        """Compared without regard to what the untouched model does: one that reads ahead cannot be attached to."""
        ids, inputs = self.text.ids.clone(), [x.clone() for x in self.inputs]
        ids[:, CHANGED:] = ids[:, : TOKENS - CHANGED]
        for x in inputs:
            x[:, CHANGED:] = -x[:, CHANGED:].flip(1)
        found = [x[:, :CHANGED] for x in self._outputs(ids=ids, inputs=inputs)]
        self._compare(found, [x[:, :CHANGED] for x in at_once])

    def cached(self, at_once: Outputs) -> None:
        noise = self._noise(self._in_pieces, self._outputs)
        self._compare(self._in_pieces(), at_once, noise=noise)
        alone = self._noise(self._first_alone, lambda: [x[:, :1] for x in self._outputs()])
        self._compare(self._first_alone(), [x[:, :1] for x in at_once], noise=alone)

    # --- ways to read the text ---

    def _outputs(
        self,
        *,
        ids: Tensor | None = None,
        ends: Tensor | None = None,
        positions: Tensor | None = None,
        inputs: Outputs | None = None,
    ) -> Outputs:
        with _tapped(self.adapter.attention, self.inputs if inputs is None else inputs) as tapped:
            self._call(ids, ends=self.text.ends if ends is None else ends, positions=positions)
        return tapped.outputs

    def _in_pieces(self) -> Outputs:
        cache, parts = DynamicCache(config=self.adapter.model.config), []
        for begin, end in zip(accumulate(PIECES, initial=0), accumulate(PIECES), strict=False):
            with _tapped(self.adapter.attention, [x[:, begin:end] for x in self.inputs]) as tapped:
                part = self.text.ids[:, begin:end], self.text.ends[:, begin:end]
                self._call(part[0], ends=part[1], cache=cache)
            parts.append(tapped.outputs)
        return [torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True)]

    def _first_alone(self) -> Outputs:
        with _tapped(self.adapter.attention, [x[:, :1] for x in self.inputs]) as tapped:
            self._call(self.text.ids[:, :1], ends=self.text.ends[:, :1])
        return tapped.outputs

    def _rounded_otherwise(self, adapter: Adapter) -> Outputs:
        """As rotating twice instead of once rounds queries and keys."""
        generator = torch.Generator().manual_seed(0)

        def round_otherwise(module: nn.Module, args: Any, turns: tuple[Tensor, ...]) -> Any:
            noise = (torch.randn(x.shape, generator=generator).to(x) for x in turns)
            rounded = tuple(x * (1 + torch.finfo(x.dtype).eps * n) for x, n in zip(turns, noise, strict=True))
            return Carried(rounded, turns.call) if isinstance(turns, Carried) else rounded

        handles = [m.register_forward_hook(round_otherwise) for m in rotary_modules(adapter.decoder)]
        try:
            return self._outputs(positions=self.text.positions)
        finally:
            for handle in handles:
                handle.remove()

    def _call(
        self,
        ids: Tensor | None = None,
        *,
        ends: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DynamicCache | None = None,
    ) -> Tensor:
        ids = self.text.ids if ids is None else ids
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
        return self._as_if(self._away(0, TOKENS), gate=1.0, **ALONE)

    def _away(self, positions: int, max_length: int) -> Addresses:
        embedding, adapter = cast(Tensor, self.adapter.model.get_input_embeddings().weight), self.adapter
        made = Away(adapter.turnings, embedding.shape[1], max_length)
        made.positions = positions
        return made.to(embedding.device, adapter.addresses.dtype)

    def _lively(self) -> Addresses:
        """As if trained: angles of about one radian."""
        generator, made = torch.Generator().manual_seed(0), copy.deepcopy(self.adapter.trained)
        for address in made.by_turning:  # type: ignore[union-attr]
            weight = cast(ContentAddress, address).project.weight
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
        return cast(Addresses, made)

    # --- comparing ---

    def _run(self, name: str, check: Callable[[], None]) -> None:
        model = type(self.adapter.model).__name__
        try:
            check()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except _DiffersError as found:
            where = "" if found.layer is None else f" in layer {found.layer}"
            raise InputError(
                f"{model} cannot be attached to: that {name} does not hold{where}, by {found.by:.2g} of the size where "
                f"{found.allowed:.2g} is rounding; check=False attaches nevertheless"
            ) from None
        except Exception as error:
            raise InputError(
                f"{model} cannot be attached to: while it was checked that {name}, it failed with "
                f"{type(error).__name__}: {error}"
            ) from error

    def _noise(self, one: Callable[[], Outputs], other: Callable[[], Outputs]) -> Callable[[], float]:
        """How far two ways to ask are apart in the untouched model."""

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
            raise _DiffersError(by, allowed, cast(int, self.adapter.attention[worst].layer_idx) if layers else None)


class _DiffersError(Exception):
    def __init__(self, by: float, allowed: float, layer: int | None) -> None:
        self.by, self.allowed, self.layer = by, allowed, layer


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


@contextmanager
def random_numbers_restored(device: torch.device, *, on_success: bool = True) -> Iterator[None]:
    cpu, gpu = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if on_success or not succeeded:
            torch.set_rng_state(cpu)
            if gpu is not None:
                torch.cuda.set_rng_state(gpu, device)


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


def _text(adapter: Adapter, most_positions: float) -> Text:
    embedding = cast(Tensor, adapter.model.get_input_embeddings().weight)
    config = adapter.model.config
    ids = torch.randint(len(embedding), (1, 2 * TOKENS), generator=torch.Generator().manual_seed(0))
    no_padding = ids[ids != getattr(config, "pad_token_id", None)][None]
    ids = (no_padding if no_padding.shape[1] >= TOKENS else ids)[:, :TOKENS]
    column = torch.arange(TOKENS)[None]
    away = max(FIRST, int(min(AWAY, most_positions - TOKENS + FIRST)))
    positions = torch.where(column < FIRST, column, column - FIRST + away)
    ends = torch.isin(column, torch.tensor(ENDS))
    return Text(*(x.to(embedding.device) for x in (ids, ends, positions)))
