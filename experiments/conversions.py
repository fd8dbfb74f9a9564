"""Ways to convert a finished model, by name: what retrofit and open_model compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from contentrope.attention.api import check_window
from contentrope.errors import InputError
from contentrope.schemes.base import read_options
from contentrope.schemes.variants import parse_variant
from experiments.experiment import require_choices

Positions = Literal["gated", "local"]
Start = Literal["zero", "back"]
Trained = Literal["all", "lora", "addresses", "nothing"]
Address = Literal["content", "random", "none"]
UNTOUCHED = "untouched"
"""The original as it is, without further training."""
RESCALINGS = ("pi", "ntk", "yarn")
"""Other frequencies for the same global positions."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Addresses in all layers."""

    address: Address = "content"
    """content; random: drawn anew for every unit, as a control; none: zero, far units differ by their tokens alone."""
    units: str = ""
    """What has an address, if not what all other variants of the experiment give one."""
    window: int = 0
    """Units that began at most so many tokens back are read at the model's own positions; 0: the own unit alone."""
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
    rank: int = 16
    """Of LoRA."""

    def __post_init__(self) -> None:
        require_choices(
            self,
            address=get_args(Address),
            positions=get_args(Positions),
            start=get_args(Start),
            train=get_args(Trained),
        )
        check_window(self.window)
        if self.window and (self.positions, self.start) != ("local", "zero"):
            raise InputError(f"window={self.window} has the model's own positions; leave out positions= and start=")
        if self.start == "back" and self.positions == "gated":
            raise InputError("start=back is for positions=local: a gate begins with units where the model has them")
        if self.rank < 1:
            raise InputError(f"rank must be at least 1, got {self.rank}")
        if self.address != "content" and (self.start != "zero" or self.train == "lora"):
            raise InputError(f"address={self.address} is not trained; leave out start= and train=lora")


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


def parse_conversion(name: str) -> Addresses | Rescaling | NoChange:
    """The options of a conversion, or a refusal that lists those there are.

    >>> options = parse_conversion("content:train=lora,competition=0")
    >>> options.train, options.competition, options.rank
    ('lora', 0, 16)
    >>> options = parse_conversion("content:units=64,competition=learned")
    >>> options.units, options.competition, options.learn_competition
    ('64', 1.0, True)
    """
    kinds = {"content": Addresses, "rope": NoChange, **dict.fromkeys(RESCALINGS, Rescaling)}
    scheme = name.partition(":")[0]
    if name == UNTOUCHED:
        return NoChange()
    if scheme not in kinds:
        raise InputError(f"no conversion {name!r}; there are {UNTOUCHED}, {', '.join(kinds)}, each with its options")
    variant = parse_variant(name)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in variant.options.items()}
    if isinstance(given.get("units"), int):
        given["units"] = str(given["units"])
    if given.get("competition") == "learned":
        given |= {"competition": 1.0, "learn_competition": True}
    return read_options(scheme, kinds[scheme], given | variant.rotary)


def is_trained(name: str) -> bool:
    """Whether a conversion is followed by training."""
    return name != UNTOUCHED and getattr(parse_conversion(name), "train", "all") != "nothing"
