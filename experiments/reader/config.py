"""Settings of the experiment with readers of documents, and the runs that have a name."""

from __future__ import annotations

from dataclasses import dataclass, field

from contentrope.errors import InputError
from contentrope.training import TrainConfig
from experiments.conversions import UNTOUCHED, Addresses, parse_conversion
from experiments.experiment import require_integers, require_lists
from experiments.pieces import Piece

MEASURES = ("answers", "orders")


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Questions that were not trained on, each with its passage among those of other such questions."""

    passages: tuple[int, ...] = (1, 5, 20, 100)
    """How many are read, the one with the answer among them."""
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Where that one stands, from 0, the first, to 1, the last."""
    examples: int = 200
    """Questions at each number and depth, everywhere the same ones."""
    new_tokens: int = 24
    """Of an answer, at most."""
    order_passages: tuple[int, ...] = (5, 20)
    """How many passages are read in two random orders."""
    orders: int = 50
    """Questions asked behind both."""

    def __post_init__(self) -> None:
        require_lists(self, "passages", "depths", "order_passages")
        require_integers(self, examples=1, new_tokens=1, orders=1)
        if min(*self.passages, *self.order_passages) < 1:
            raise InputError(f"passages must be 1 or more, got {self.passages} and {self.order_passages}")
        if min(self.depths) < 0.0 or max(self.depths) > 1.0:
            raise InputError(f"depths must be from 0, the first passage, to 1, the last; got {self.depths}")


@dataclass(frozen=True, kw_only=True)
class ReaderConfig:
    """What decides the numbers of a run."""

    variants: tuple[str, ...] = (
        UNTOUCHED,
        "rope",
        "yarn:factor=8",
        "content:window=1024,competition=learned",
        "content:window=1024,address=none,competition=learned",
        "content:window=1024,address=random,competition=learned",
        "content:window=1024,competition=0",
        "content:window=1024,address=none,competition=0",
    )
    """What to compare: content reads documents as memory units; untouched, rope, pi, ntk, yarn read one text."""
    main: tuple[str, ...] = (
        "rope",
        "yarn:factor=8",
        "content:window=1024,competition=learned",
        "content:window=1024,address=none,competition=learned",
        "content:window=1024,address=random,competition=learned",
    )
    """Variants with all seeds; the others have one."""
    seeds: int = 3
    """Trainings of each main variant, with the seeds 0, 1, 2, ..."""
    measures: tuple[str, ...] = MEASURES
    """What to measure: answers, orders."""
    model: str | None = None
    """Folder or hub name of the model; None: SmolLM2, where experiments.open_model.weights put it."""
    units: str = "line"
    """What has an address in the question, and where a long passage is cut."""
    longest_unit: int = 256
    """Tokens; a passage that is longer becomes several units."""
    length: int = 8192
    """Tokens of a row in training."""
    text_share: float = 0.3
    """Share of the rows that are made of books: passages, what goes on behind one, facts that are asked for."""
    characters: int | None = None
    """Only so many of the books to train on, in the order of their names; None: all."""
    asking: Asking = field(default_factory=Asking)
    training: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=750,
            batch_size=8,
            accumulate=2,
            learning_rate=5e-5,
            weight_decay=0.01,
            warmup=30,
            precision="bf16",
            acceleration="none",
        )
    )
    """Of every conversion."""

    def __post_init__(self) -> None:
        require_lists(self, "variants", "main", "measures", may_be_empty=("main",))
        require_integers(self, seeds=1, longest_unit=1, length=2)
        if not 0.0 <= self.text_share <= 1.0:
            raise InputError(f"text_share must be from 0 to 1, got {self.text_share}")
        if unknown := set(self.measures) - set(MEASURES):
            raise InputError(f"measures are {', '.join(MEASURES)}; got {', '.join(sorted(unknown))}")
        for variant in (*self.variants, *self.main):
            options = parse_conversion(variant)
            if isinstance(options, Addresses) and (options.units or options.positions != "local"):
                raise InputError(f"{variant}: all readers have the same units, and local positions; leave that out")

    def pieces(self, measures: tuple[str, ...] | None = None) -> list[Piece]:
        """What is measured of a variant, few passages first; of all that is asked for, or of some ``measures``."""
        asked = self.measures if measures is None else measures
        found: list[Piece] = []
        if "answers" in asked:
            for count in sorted(self.asking.passages):
                depths = self.asking.depths if count > 1 else self.asking.depths[:1]
                found += [("answers", str(count), f"{depth:g}") for depth in depths]
        if "orders" in asked:
            found += [("orders", str(count)) for count in sorted(self.asking.order_passages)]
        return found


def reads_units(variant: str) -> bool:
    """Whether documents are memory units to a variant; else it reads one text."""
    return isinstance(parse_conversion(variant), Addresses)


QUICK = ReaderConfig(
    variants=(
        UNTOUCHED,
        "rope",
        "yarn:factor=8",
        "content:window=1024",
        "content:window=1024,address=none",
        "content:window=1024,address=random",
    ),
    main=(),
    seeds=1,
    length=640,
    characters=1_000_000,
    asking=Asking(passages=(1, 5, 20), depths=(0.0, 1.0), examples=3, new_tokens=8, order_passages=(5,), orders=2),
    training=TrainConfig(steps=5, batch_size=1, learning_rate=5e-5, weight_decay=0.01, warmup=1, precision="bf16"),
)
"""Minutes of two CPU cores. It shows what is done; so few rows teach little, and so few questions say little."""

PRESETS = {"quick": QUICK, "paper": ReaderConfig()}
