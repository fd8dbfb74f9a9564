"""What the experiment compares: ways to make a finished model read on, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from contentrope.errors import InputError
from contentrope.experiments.variants import parse_variant
from contentrope.schemes.base import read_options

UNTOUCHED = "untouched"
"""The original as it is, without further training."""
RESCALINGS = ("pi", "ntk", "yarn")
"""Other frequencies for the same global positions."""

Positions = Literal["gated", "local"]
Start = Literal["zero", "back"]
Trained = Literal["all", "lora", "addresses", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Content addresses in all layers."""

    positions: Positions = "local"
    """local: counted inside each unit at once; gated: from global to local in the course of training."""
    start: Start = "zero"
    """Addresses before they are trained. zero: all units lie upon the open one; back: a long unit before it, at
    distances that the model knows, so that it reads well without training, but does not end as well with it."""
    train: Trained = "all"
    """all weights; lora: low-rank changes and the addresses; addresses alone; or nothing."""
    competition: float = 1.0
    """Exponent of the number of units, against which the open unit is weighed."""
    learn_competition: bool = False
    """For each layer and head, from there on."""
    anchors: tuple[int, ...] = ()
    """How many units back the one lies from which an open unit goes on, dealt out to the heads; 0: none."""
    rank: int = 16
    """Of LoRA."""

    def __post_init__(self) -> None:
        for name, choices in (("positions", Positions), ("start", Start), ("train", Trained)):
            if getattr(self, name) not in get_args(choices):
                raise InputError(f"{name} must be one of {', '.join(get_args(choices))}; got {getattr(self, name)!r}")
        if self.start == "back" and self.positions == "gated":
            raise InputError("start=back is for positions=local: a gate begins with units where the model has them")
        if any(self.anchors) and (self.positions, self.start) != ("local", "zero"):
            raise InputError("anchors are for positions=local and start=zero: they say themselves where units begin")
        if self.rank < 1:
            raise InputError(f"rank must be at least 1, got {self.rank}")


@dataclass(frozen=True, kw_only=True)
class Rescaling:
    """Frequencies that a longer text does not take further than the training length did."""

    factor: float = 16.0

    def __post_init__(self) -> None:
        if not self.factor >= 1.0:
            raise InputError(f"factor must be at least 1, got {self.factor}")


@dataclass(frozen=True, kw_only=True)
class NoChange:
    """The original, trained on: what further training alone does."""


@dataclass(frozen=True)
class Conversion:
    scheme: str
    options: Addresses | Rescaling | NoChange

    @property
    def addresses(self) -> Addresses | None:
        return self.options if isinstance(self.options, Addresses) else None

    @property
    def gated(self) -> bool:
        return self.addresses is not None and self.addresses.positions == "gated"

    @property
    def trains(self) -> bool:
        return self.scheme != UNTOUCHED and (self.addresses is None or self.addresses.train != "nothing")

    @property
    def factor(self) -> float:
        return cast(Rescaling, self.options).factor


def parse_conversion(name: str) -> Conversion:
    """
    >>> options = parse_conversion("content:train=lora,anchors=[0,1]").options
    >>> options.train, options.anchors, options.rank
    ('lora', (0, 1), 16)
    >>> parse_conversion("pi:factor=8").factor
    8
    """
    if name == UNTOUCHED:
        return Conversion(UNTOUCHED, NoChange())
    kinds = {"content": Addresses, "rope": NoChange, **dict.fromkeys(RESCALINGS, Rescaling)}
    scheme = name.partition(":")[0]
    if scheme not in kinds:
        raise InputError(f"no conversion {name!r}; there are {UNTOUCHED}, {', '.join(kinds)}, each with its options")
    variant = parse_variant(name)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in variant.options.items()}
    return Conversion(scheme, read_options(scheme, kinds[scheme], given | variant.rotary))
