"""Settings of the facts experiment, and those that have a name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import get_args

from contentrope import schemes
from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.schemes.variants import parse_variant
from contentrope.training import TrainConfig
from contentrope.training.sizes import ModelSize
from experiments.experiment import require_choices, require_integers, require_lists
from experiments.facts.generator.sampler import Sampler
from experiments.facts.generator.sentences import Layout
from experiments.initialisation import Initialisation

MOST_EXAMPLES = 10**6


@dataclass(frozen=True, kw_only=True)
class FactsConfig:
    """What decides the numbers of a run."""

    variants: tuple[str, ...] = ("content", "content:competition=1", "rope")
    """What to compare: scheme, or scheme:option=value,option=value; memory=true makes facts memory units."""
    seeds: int = 1
    """Runs per variant, with the seeds 0, 1, 2, ..."""
    layout: Layout = "end"
    """How facts are closed."""
    facts: tuple[int, int] = (1, 1)
    """Fewest and most facts of a training example; with several, all but one are distractors of mixed kinds."""
    ramp: float = 0.0
    """Share of training over which the most facts of an example grow from the fewest on, one by one."""
    answers_after: float = 1.0
    """Share of training after which only the names asked for are predicted; before it every token is, as in the
    paper."""
    examples: int = 1000
    """Examples a score is measured on."""
    distractors: int = 4
    """Other facts beside the one that is asked for."""
    exponents: tuple[float, ...] = ()
    """Other exponents of competition to score models with addresses under. A model that saw one fact at a time was
    trained under all of them alike: the logarithm of one unit is zero."""
    scaling: tuple[int, ...] = ()
    """Numbers of distractors of the same relation to measure beyond the rows of the table, on unseen names."""
    order: int = 0
    """Examples whose facts are put in other orders, to see whether the answer changes; 0: leave it out."""
    world: int = 0
    """Seed of the names and facts."""
    initialisation: Initialisation = "small"
    """small: normal, 0.02; linear: linear layers as PyTorch has them, embeddings small; torch: embeddings too, of size
    one; torch-all: addresses too, which else begin at zero."""
    model: ModelSize = field(default_factory=lambda: ModelSize(dim=60, layers=3, heads=1))
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", tuple(self.facts))
        require_lists(self, "variants", "exponents", "scaling", may_be_empty=("exponents", "scaling"))
        require_integers(self, seeds=1, examples=1, distractors=0, order=0, world=0)
        if max(self.examples, self.order) > MOST_EXAMPLES:
            given = f"examples {self.examples}, order {self.order}"
            raise InputError(f"{given}: at most {MOST_EXAMPLES}, for all are drawn at once; take fewer")
        if len(self.facts) != 2 or not 1 <= self.facts[0] <= self.facts[1]:
            raise InputError(f"facts must be the fewest and the most of an example, such as 1 8; got {self.facts}")
        require_choices(self, initialisation=get_args(Initialisation))
        for name in ("ramp", "answers_after"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"{name} must be a share of training from 0 to 1, got {getattr(self, name)}")
        if not all(map(math.isfinite, self.exponents)):
            raise InputError(f"exponents must be finite numbers, got {self.exponents}")
        if min((1, *self.scaling)) < 1:
            raise InputError(f"scaling must be numbers of at least 1, got {self.scaling}")
        with_addresses = [
            schemes.kind(parse_variant(without_memory(name)[0]).scheme).knows_memory_units for name in self.variants
        ]
        if self.exponents and not any(with_addresses):
            raise InputError(
                f"exponents {self.exponents} are for models with addresses, which none of {', '.join(self.variants)} "
                f"has; add one of {', '.join(schemes.names(knows_memory_units=True))}, or leave out --exponents"
            )

    def model_of(self, variant: str, sampler: Sampler) -> ModelConfig:
        """The settings of the model of a variant."""
        name, memory = without_memory(variant)
        if memory and not schemes.kind(parse_variant(name).scheme).knows_memory_units:
            able = ", ".join(schemes.names(knows_memory_units=True))
            raise InputError(f"{variant!r} cannot have memory units, {able} can; leave out memory=true")
        reader = sampler.reader if memory else ()
        size, ends = len(sampler.vocabulary), sampler.terminators
        return self.model.model(name, vocab_size=size, terminators=ends, reader=reader)


def without_memory(variant: str) -> tuple[str, bool]:
    """The name without the option ``memory``, which is one of the units and not of the scheme.

    >>> without_memory("content:memory=true,competition=1")
    ('content:competition=1', True)
    """
    memory = parse_variant(variant).options.get("memory", False)
    if not isinstance(memory, bool):
        raise InputError(f"memory in {variant!r} must be true or false")
    scheme, _, rest = variant.partition(":")
    options = rest.replace(f"memory={str(memory).lower()}", "").replace(",,", ",").strip(",")
    return (f"{scheme}:{options}" if options else scheme), memory


QUICK = FactsConfig(
    variants=("content:competition=1", "rope"),
    examples=200,
    initialisation="linear",
    training=TrainConfig(steps=1250, batch_size=32, learning_rate=4e-3, warmup=100),
)
"""A few minutes on two CPU cores."""
ALIBI = ("alibi:slopes=[0.00390625]", "alibi:slopes=[0.25]")
PAPER = FactsConfig(
    variants=("content", "content:competition=1", "rope", *ALIBI, "random", "local"),
    seeds=3,
    training=TrainConfig(steps=100_000, batch_size=32, learning_rate=5e-4, precision="tf32"),
)
"""Appendix A.2 of the paper, with the exponent, and with controls the paper does not have."""
SHARP = "competition=1,sharpness=0.3,learn_sharpness=true"
"""Scores that grow with the number of completed units: among many facts one must still stand out."""
BEYOND = FactsConfig(
    variants=(f"content:{SHARP}", f"content:{SHARP},memory=true", f"random:{SHARP}", "rope", ALIBI[1], "bipe"),
    seeds=3,
    facts=(1, 8),
    ramp=0.4,
    answers_after=0.4,
    scaling=(4, 16, 64, 256),
    order=200,
    training=TrainConfig(steps=30_000, batch_size=32, learning_rate=3e-3, warmup=500, precision="tf32"),
)
"""Several facts in every training example, which the paper leaves as the next test. In the end only the names asked for
are learned: those of the facts cannot be known, and are most of the tokens. From the beginning that would be worse,
see docs/facts.md."""
PRESETS = {"quick": QUICK, "paper": PAPER, "beyond": BEYOND}
