"""Settings of the experiment with an open model, and the runs that have a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from contentrope.errors import InputError
from contentrope.evaluation.tasks import GROUPS
from contentrope.training import TrainConfig
from experiments.conversions import UNTOUCHED, parse_conversion
from experiments.experiment import require_integers, require_lists
from experiments.pieces import Piece

MEASURES = ("perplexity", "short", "by_position", "distant", "tasks")
LISTS = re.compile(r"kv_(\d+)")
"""Tasks that have as many key-value pairs as their name says, whatever the length."""
PAIR_TOKENS, LONGEST_LIST = 90, 131072
"""About what a pair takes, and the most that all of them may take."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Perplexity of books that were not trained on. Every length scores the same tokens: the last of its windows."""

    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    """Tokens of the windows; those of all lengths end at the same places."""
    scored: int = 512
    """Tokens scored at the end of each."""
    windows: int = 32
    """Of each length."""
    position_length: int = 32768
    """Tokens of the windows, a quarter of the others, in which perplexity is told by position."""
    distant_length: int = 8192
    """Tokens of the windows whose past is changed."""
    near: int = 512
    """Tokens at the end of those that stay as they are, and are scored."""

    def __post_init__(self) -> None:
        require_lists(self, "lengths")
        require_integers(self, scored=1, windows=1, position_length=1, distant_length=2, near=1)
        if self.scored > min(self.lengths):
            raise InputError(f"scored {self.scored} must fit into the shortest window, {min(self.lengths)}")
        if max(self.position_length, self.distant_length) > max(self.lengths):
            raise InputError(f"position_length and distant_length may be {max(self.lengths)}, the longest, at most")
        if self.near >= self.distant_length:
            raise InputError(f"near {self.near} must be less than distant_length {self.distant_length}")


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Tasks of contentrope.evaluation.tasks."""

    tasks: tuple[str, ...] = (*GROUPS["ruler"], "kv_75", "kv_1000", *GROUPS["babi"])
    """Of the main variants."""
    few_tasks: tuple[str, ...] = ("niah_single_2", "niah_multikey_2", "kv_75")
    """Of all other variants."""
    last_tasks: tuple[str, ...] = ("niah_single_2", "niah_multikey_2")
    """The only ones at the longest of several lengths."""
    task_lengths: tuple[int, ...] = (4096, 8192, 16384, 32768, 65536, 131072)
    """Tokens of a prompt with its answer."""
    examples: tuple[int, ...] = (50, 50, 50, 50, 20, 10)
    """Of each task, by length."""
    short_examples: int = 100
    """Questions on a single passage."""

    def __post_init__(self) -> None:
        require_lists(self, "tasks", "task_lengths", "few_tasks", "last_tasks", may_be_empty=("last_tasks",))
        object.__setattr__(self, "examples", tuple(self.examples))
        require_integers(self, short_examples=1)
        if len(self.examples) != len(self.task_lengths) or min(self.examples) < 1:
            raise InputError(f"examples must be {len(self.task_lengths)} numbers, one a length; got {self.examples}")
        if unknown := {*self.few_tasks, *self.last_tasks} - {*self.tasks}:
            raise InputError(f"few_tasks and last_tasks must be among tasks; {', '.join(sorted(unknown))} are not")

    def sizes(self, task: str) -> Iterator[tuple[int, int]]:
        """Lengths of a task, or the number of its pairs, and how many examples there are of each."""
        by_length = dict(zip(self.task_lengths, self.examples, strict=True))
        if pairs := LISTS.fullmatch(task):
            fitting = [length for length in by_length if length >= PAIR_TOKENS * int(pairs[1])]
            yield int(pairs[1]), by_length[min(fitting, default=max(by_length))]
            return
        for length, count in by_length.items():
            if len(by_length) == 1 or length < max(by_length) or task in self.last_tasks:
                yield length, count

    def count(self, task: str, size: int) -> int:
        return dict(self.sizes(task))[size]


@dataclass(frozen=True, kw_only=True)
class OpenModelConfig:
    """What decides the numbers of a run."""

    variants: tuple[str, ...] = (
        UNTOUCHED,
        "rope",
        "yarn:factor=8",
        "content:window=1024,address=none,competition=learned",
        "content:window=1024,competition=learned",
        "content:competition=learned",
        "content:window=1024,address=random,competition=learned",
        "content:window=1024,competition=1",
        "content:window=1024,competition=0",
        "content:window=256,competition=learned",
        "content:window=4096,competition=learned",
        "content:window=1024,competition=learned,units=sentence",
        "content:window=1024,competition=learned,units=64",
        "content:window=1024,address=none,competition=learned,units=64",
        "content:competition=learned,address=none",
        "yarn:factor=16",
        "pi:factor=8",
        "pi:factor=16",
        "ntk:factor=8",
        "ntk:factor=16",
    )
    """What to compare: untouched, or content, rope, pi, ntk, yarn with options."""
    main: tuple[str, ...] = (
        "rope",
        "yarn:factor=8",
        "content:window=1024,address=none,competition=learned",
        "content:window=1024,competition=learned",
        "content:competition=learned",
    )
    """Variants with all seeds and all tasks; the others have one seed, and few tasks."""
    seeds: int = 3
    """Trainings of each main variant, with the seeds 0, 1, 2, ..."""
    measures: tuple[str, ...] = MEASURES
    """What to measure: perplexity, short, by_position, distant, tasks."""
    model: str | None = None
    """Folder or hub name of the model; None: SmolLM2, where experiments.open_model.weights put it."""
    units: str = "line"
    """What has an address, where a variant does not say: line, sentence, paragraph, or a number of tokens."""
    longest_unit: int = 256
    """Tokens; a unit that gets longer ends there."""
    length: int = 8192
    """Tokens of a row in training."""
    retrieval: float = 0.3
    """Share of the rows in which something is hidden in the text and asked for at the end."""
    characters: int | None = None
    """Only so many of the books to train on, in the order of their names; None: all."""
    reading: Reading = field(default_factory=Reading)
    asking: Asking = field(default_factory=Asking)
    training: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1000,
            batch_size=4,
            learning_rate=1e-4,
            weight_decay=0.01,
            warmup=20,
            precision="bf16",
            acceleration="none",
        )
    )
    """Of every conversion."""

    def __post_init__(self) -> None:
        require_lists(self, "variants", "main", "measures", may_be_empty=("main",))
        require_integers(self, seeds=1, longest_unit=1, length=2)
        if not 0.0 <= self.retrieval <= 1.0:
            raise InputError(f"retrieval must be from 0 to 1, got {self.retrieval}")
        if unknown := set(self.measures) - set(MEASURES):
            raise InputError(f"measures are {', '.join(MEASURES)}; got {', '.join(sorted(unknown))}")
        for variant in (*self.variants, *self.main):
            window = getattr(parse_conversion(variant), "window", 0)
            if window >= self.length:
                raise InputError(f"{variant} would meet no far unit in rows of {self.length} tokens; raise length")

    def pieces(self, variant: str, measures: tuple[str, ...] | None = None) -> list[Piece]:
        """What is measured of a variant, cheap things first; of all that is asked for, or of some ``measures``."""
        asked = self.measures if measures is None else measures
        found: list[Piece] = []
        if "perplexity" in asked:
            found += [("perplexity", str(length)) for length in sorted(self.reading.lengths)]
        found += [(name,) for name in ("short", "by_position", "distant") if name in asked]
        if "tasks" in asked:
            tasks = self.asking.tasks if variant in self.main else self.asking.few_tasks
            sizes = [(size, task) for task in tasks for size, _ in self.asking.sizes(task)]
            sizes.sort(key=lambda both: both[0] * (PAIR_TOKENS if LISTS.fullmatch(both[1]) else 1))
            found += [("tasks", task, str(size)) for size, task in sizes]
        return found


QUICK = OpenModelConfig(
    variants=(UNTOUCHED, "rope", "yarn:factor=8", "content:window=1024,address=none", "content:window=1024"),
    main=(),
    seeds=1,
    measures=("perplexity", "tasks"),
    length=2048,
    characters=3_000_000,
    reading=Reading(lengths=(2048, 8192, 16384), scored=1024, windows=1, position_length=8192, distant_length=2048),
    asking=Asking(
        tasks=("niah_single_2", "kv"),
        few_tasks=("niah_single_2", "kv"),
        last_tasks=(),
        task_lengths=(2048,),
        examples=(4,),
        short_examples=4,
    ),
    training=TrainConfig(steps=5, batch_size=1, learning_rate=1e-4, weight_decay=0.01, warmup=1, precision="bf16"),
)
"""About 13 minutes of two CPU cores. It shows what is done; so few rows teach little, and so few tokens say little."""

PRESETS = {"quick": QUICK, "paper": OpenModelConfig()}
