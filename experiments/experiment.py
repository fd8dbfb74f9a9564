"""What an experiment is, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

from contentrope.errors import InputError
from contentrope.training import StepReport


class Trained(NamedTuple):
    variant: str
    seed: int
    report: StepReport


class Evaluated(NamedTuple):
    variant: str
    seed: int
    said: str
    """What was found, in a few words."""


class Measured(NamedTuple):
    """A piece of a run, which is kept at once: the rest may be measured by another command."""

    variant: str
    seed: int
    found: dict[str, Any]
    said: str


class Finished(NamedTuple):
    variant: str
    seed: int
    run: dict[str, Any]
    """What has not been told in pieces."""
    said: str
    whole: bool = True
    """Whether nothing is left to measure; otherwise its checkpoint is kept."""


Event = Trained | Evaluated | Measured | Finished
Tell = Callable[[Event], None]
ASKED_FOR = ("variants", "seeds", "measures")
"""Settings that say what is to be measured, and change no number."""


@dataclass(frozen=True)
class Experiment:
    """Variants to compare, each with several seeds. Sent to other processes by its settings alone."""

    config: Any

    name: ClassVar[str]
    alone: ClassVar[bool] = False
    """Whether variants measured beside each other would disturb each other."""
    trains_in_processes: ClassVar[bool] = False
    """Whether several processes may share the training of a run, which is then measured by one: :meth:`train`."""

    @property
    def variants(self) -> tuple[str, ...]:
        return cast(tuple[str, ...], self.config.variants)

    @property
    def seeds(self) -> int:
        return cast(int, self.config.seeds)

    def seeds_of(self, variant: str) -> range:
        return range(self.seeds)

    def lacks_something(self, variant: str, run: Mapping[str, Any]) -> bool:
        """Whether a run in the results is to be gone on with: something is asked for that it has not."""
        return False

    @property
    def steps(self) -> int:
        """Updates of each run."""
        return cast(int, self.config.training.steps)

    def settings(self) -> dict[str, Any]:
        """Everything that decides the numbers, as JSON."""
        return asdict(self.config)

    def data(self) -> dict[str, Any]:
        """What is trained on and evaluated, as JSON."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse what would fail later: a misspelt option stops the run now, not after the first variant."""
        raise NotImplementedError

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        """Train and evaluate ``variant`` with each seed; ``tell`` hears of every step and of each finished run."""
        raise NotImplementedError

    def train(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        """Leave a finished checkpoint for each seed, from which :meth:`measure` goes on. All of a launch call it."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.config,)  # without what was loaded or drawn for it


# --- settings ------------------------------------------------------------------------------------------------------


def require_lists(config: Any, *names: str, may_be_empty: tuple[str, ...] = ()) -> None:
    """Refuse settings that do not name one or more different values; each becomes a tuple."""
    for name in names:
        values = tuple(getattr(config, name))
        object.__setattr__(config, name, values)
        if len(set(values)) < len(values) or not (values or name in may_be_empty):
            raise InputError(f"{name} must name one or more different values, got {values}")


def require_integers(config: Any, **least: int) -> None:
    """Refuse settings that are no integers, or less than the least they may be."""
    for name, smallest in least.items():
        require_integer(name, getattr(config, name), smallest)


def require_integer(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")


def require_choices(config: Any, **choices: tuple[str, ...]) -> None:
    """Refuse settings that are none of their choices."""
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise InputError(f"{name} must be one of {', '.join(allowed)}; got {getattr(config, name)!r}")
