"""``contentrope facts``: the serialized facts, counted and shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Literal, cast

import torch
from rich.console import Console
from tyro.conf import arg

from contentrope.cli.options import require_seed, several
from contentrope.cli.tables import print_table, say
from contentrope.errors import InputError
from contentrope.facts import Condition, Drawn, FactVocabulary, Kind, Layout, Names, Sampler, World

MOST_EXAMPLES = 10_000


@dataclass(frozen=True)
class Facts:
    """Count the facts of the retrieval experiment, and show some examples; [brackets] enclose what is scored.

    Example: contentrope facts --names test --condition same-relation --distractors 4
    """

    examples: int = 3
    """Examples to show."""
    names: Names = "train"
    """Whose facts: those of the names trained on, or of the others."""
    kind: Kind = "any"
    """What is asked for: a fact about two, about three, or either."""
    condition: Literal["single", "same-entities", "same-relation", "mixed"] = "single"
    """Which facts stand beside the asked one."""
    distractors: Annotated[
        tuple[int, ...] | None, several(int, "INT"), arg(help_behavior_hint="(default: 4; for single, 0)")
    ] = None
    """How many they are: one number, or the least and the most."""
    layout: Layout = "end"
    """How facts are closed: by ; before a text that begins with |, by ; with | apart, or by | alone."""
    test_names: int = 100
    """Names to test on; more of them allow more distractors."""
    seed: int = 0
    """Decides names, facts and examples."""

    def run(self) -> None:
        if not 0 <= self.examples <= MOST_EXAMPLES:
            raise InputError(f"examples must be from 0 to {MOST_EXAMPLES}, got {self.examples}")
        require_seed(self.seed)
        world, console = World(seed=self.seed, test_names=self.test_names), Console()
        lines = list(self._lines(world))
        print_counts(console, world)
        for number, line in enumerate(lines, start=1):
            say(console, f"\n--- example {number} of {len(lines)}\n{line}")

    def _lines(self, world: World) -> Iterator[str]:
        if not self.examples:
            return
        sampler = Sampler(world, self.layout)
        drawn = sampler.draw(
            self.examples,
            torch.Generator().manual_seed(self.seed),
            names=self.names,
            kind=self.kind,
            condition=cast(Condition, self.condition.replace("-", " ")),
            distractors=self._distractors(),
        )
        for row in range(self.examples):
            yield with_brackets(drawn, row, sampler.vocabulary)

    def _distractors(self) -> int | tuple[int, int] | None:
        if self.distractors is None:
            return None
        if len(self.distractors) not in (1, 2):
            given = " ".join(map(str, self.distractors)) or "nothing"
            raise InputError(f"--distractors takes one number, or the least and the most; got {given}")
        return self.distractors[0], self.distractors[-1]


def print_counts(console: Console, world: World) -> None:
    training, test = world.train.counts(), world.test.counts()
    rows = [
        (name.replace("_", " "), f"{of_training:,}", f"{of_test:,}")
        for name, of_training, of_test in zip(training._fields, training, test, strict=True)
    ]
    print_table(console, f"Facts of world {world.seed}", ("", "train", "test"), rows)


def with_brackets(drawn: Drawn, row: int, vocabulary: FactVocabulary) -> str:
    """One example as text, each stretch of scored characters in brackets."""
    text = ""
    tokens = zip(drawn.ids[row].tolist(), drawn.scored[row].tolist(), strict=True)
    for scored, stretch in groupby(tokens, key=lambda token: token[1]):
        written = vocabulary.decode(identifier for identifier, _ in stretch)
        text += f"[{written}]" if scored else written
    return text
