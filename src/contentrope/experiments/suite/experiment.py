"""What an experiment is, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

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


class Finished(NamedTuple):
    variant: str
    seed: int
    run: dict[str, Any]
    said: str


Tell = Callable[[Trained | Evaluated | Finished], None]


class Experiment(Protocol):
    """Variants to compare, each with several seeds. Sent to other processes, so it must be small when pickled."""

    @property
    def name(self) -> str:
        """Of the command: ``contentrope reproduce NAME``."""

    @property
    def variants(self) -> tuple[str, ...]: ...

    @property
    def seeds(self) -> int: ...

    @property
    def steps(self) -> int:
        """Updates of each run."""

    def settings(self) -> dict[str, Any]:
        """Everything that decides the numbers, with ``variants`` and ``seeds``, as JSON."""

    def data(self) -> dict[str, Any]:
        """What is trained on and evaluated, as JSON."""

    def check(self) -> None:
        """Refuse what would fail later: a misspelt option stops the run now, not after the first variant."""

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        """Train and evaluate ``variant`` with each seed; ``tell`` hears of every step and of each finished run."""


@dataclass(frozen=True)
class Configured:
    """What an experiment says of itself by its configuration; all but what it measures."""

    config: Any

    @property
    def variants(self) -> tuple[str, ...]:
        return cast(tuple[str, ...], self.config.variants)

    @property
    def seeds(self) -> int:
        return cast(int, self.config.seeds)

    @property
    def steps(self) -> int:
        return cast(int, self.config.training.steps)

    def settings(self) -> dict[str, Any]:
        return asdict(self.config)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.config,)  # without what was loaded or drawn for it
