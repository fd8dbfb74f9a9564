"""Counts the facts and shows some examples; [brackets] enclose what is scored.

Example: python -m experiments.facts.show --names test --condition same-relation --distractors 4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch

from contentrope.cli import run_program
from contentrope.errors import InputError
from experiments.facts.generator.sampler import Sampler
from experiments.facts.generator.world import World

PROGRAM = "python -m experiments.facts.show"
MOST_EXAMPLES = 10_000
OPTIONS = {
    "examples": (3, "examples to show"),
    "names": ("train", "whose facts: train, the names trained on, or test, the others"),
    "kind": ("any", "what is asked for: chain2, a fact about two, chain3, about three, or any"),
    "condition": ("single", "the facts beside the asked one: single (none), same-entities, same-relation or mixed"),
    "layout": ("end", "how facts are closed: end, by ; before a text that begins with |; apart, | alone; bar, by |"),
    "test-names": (100, "names to test on; more of them allow more distractors"),
    "seed": (0, "decides names, facts and examples"),
}


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message[:1000])


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(PROGRAM, description=__doc__)
    for name, (default, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (default: {default})")
    several = "how many stand beside it: one number, or the least and the most (default: 4; for single, 0)"
    parser.add_argument("--distractors", type=int, nargs="*", metavar="INT", help=several)
    return parser.parse_args(arguments)


def shown(options: argparse.Namespace) -> Iterator[str]:
    """Lines: counts, then examples."""
    if not 0 <= options.examples <= MOST_EXAMPLES:
        raise InputError(f"examples must be from 0 to {MOST_EXAMPLES}, got {options.examples}")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"seed must be 0 or more and less than 2**63, got {options.seed}")
    several = options.distractors
    if several is not None and len(several) not in (1, 2):
        given = " ".join(map(str, several)) or "nothing"
        raise InputError(f"--distractors takes one number, or the least and the most; got {given}")
    world = World(seed=options.seed, test_names=options.test_names)
    sampler, counts = Sampler(world, options.layout), world.test.counts()
    yield f"Facts of world {world.seed}\n\n{'':18}{'train':>12}{'test':>12}"
    yield from (f"{name:18}{count:>12,}{counts[name]:>12,}" for name, count in world.train.counts().items())
    drawn = sampler.draw(
        max(options.examples, 1),
        torch.Generator().manual_seed(options.seed),
        names=options.names,
        kind=options.kind,
        condition=options.condition.replace("-", " "),
        distractors=several and (several[0], several[-1]),
    )
    symbols = sampler.vocabulary.symbols
    for row in range(options.examples):
        tokens = zip(drawn.ids[row].tolist(), drawn.scored[row].tolist(), strict=True)
        text = "".join(f"[{symbols[i]}]" if scored else symbols[i] for i, scored in tokens).replace("][", "")
        yield f"\n--- example {row + 1} of {options.examples}\n{text}"


class Show:
    """The command, its options read."""

    def __init__(self, words: Sequence[str]) -> None:
        self.options = options_of(words)

    def run(self) -> None:
        print("\n".join(shown(self.options)))  # all or nothing


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts and the examples; status 2 for options that make no sense."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    whole = arguments is None
    return run_program(
        PROGRAM, lambda: Show, words, whole_process=whole, resumable=False, needs=["faker"], extra="facts"
    )


if __name__ == "__main__":
    sys.exit(main())
