"""``contentrope reproduce facts``: retrieval from serialized facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, get_args

from contentrope.cli.options import one
from contentrope.cli.reproduce.common import (
    OF_THE_PRESET,
    Initialisation,
    Integer,
    Integers,
    Number,
    Numbers,
    TrainingReproduction,
)
from contentrope.experiments.facts import PRESETS, FactsConfig
from contentrope.experiments.facts import Facts as Experiment
from contentrope.facts import Layout

Closing = Annotated[Layout | None, one(str, "", get_args(Layout)), OF_THE_PRESET]


@dataclass(frozen=True)
class Facts(TrainingReproduction):
    """Train on facts and sentences about them, then ask for names among other facts: which is the answer read from?

    - DIR/results.json: all numbers and settings; DIR/report.html and DIR/report.md: tables and figures
    - DIR/runs: the trained models

    The same command again continues where it was stopped; seeds and variants can be added later.

    Any other change to a preset is recorded under the name "custom". In a variant, memory=true makes every fact a
    memory unit, which sees only itself.

    Example: contentrope reproduce facts --preset paper --device cuda --jobs 4
    """

    facts: Integers = None
    """Fewest and most facts of a training example."""
    ramp: Number = None
    """Share of training over which the most facts of an example grow from the fewest on."""
    answers_after: Number = None
    """Share of training after which only the names asked for are predicted; before it, every token."""
    layout: Closing = None
    """How facts are closed; `contentrope facts` shows examples."""
    initialisation: Initialisation = None
    """First weights: normal and small, or as PyTorch's layers begin: the linear ones, embeddings too, addresses too."""
    examples: Integer = None
    """Examples a score is measured on."""
    exponents: Numbers = None
    """Also score models with addresses under other exponents of competition, without training them again."""
    scaling: Integers = None
    """Also measure with so many distractors of the same relation, on unseen names."""
    order: Integer = None
    """Also put the facts of so many examples in other orders; 0 leaves it out."""

    PRESETS: ClassVar = PRESETS
    OWN: ClassVar = (
        "facts",
        "ramp",
        "answers_after",
        "layout",
        "initialisation",
        "examples",
        "exponents",
        "scaling",
        "order",
    )

    def experiment(self, config: FactsConfig) -> Experiment:
        return Experiment(config)
