"""Settings of the facts experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from contentrope import schemes
from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.experiments.first_weights import FirstWeights, check_first_weights
from contentrope.experiments.sizes import ModelSize
from contentrope.experiments.variants import parse_variant
from contentrope.facts import Layout, Sampler
from contentrope.training import TrainConfig

MEMORY = "memory"
"""Option of a variant: facts are memory units, which see only themselves."""


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
    initialisation: FirstWeights = "small"
    """First weights. small: normal, 0.02; linear: linear layers as PyTorch's begin, embeddings small; torch: embeddings
    too, of size one; torch-all: addresses too, which else begin at zero."""
    model: ModelSize = field(default_factory=lambda: ModelSize(dim=60, layers=3, heads=1))
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        for name in ("variants", "exponents", "scaling", "facts"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("variants", "exponents", "scaling"):
            values = getattr(self, name)
            if len(set(values)) < len(values) or not (values or name != "variants"):
                raise InputError(f"{name} must name one or more different values, got {values}")
        least = {"seeds": 1, "examples": 1, "distractors": 0, "order": 0, "world": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise InputError(f"{name} must be an integer of at least {smallest}, got {value!r}")
            if name in ("examples", "order") and value > MOST_EXAMPLES:
                raise InputError(f"{name} must be at most {MOST_EXAMPLES}, got {value}: all are drawn at once")
        if len(self.facts) != 2 or not 1 <= self.facts[0] <= self.facts[1]:
            raise InputError(f"facts must be the fewest and the most of an example, such as 1 8; got {self.facts}")
        check_first_weights(self.initialisation)
        for name in ("ramp", "answers_after"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"{name} must be a share of training from 0 to 1, got {getattr(self, name)}")
        for exponent in self.exponents:
            if not math.isfinite(exponent):
                raise InputError(f"exponents must be finite numbers, got {exponent}")
        if min((1, *self.scaling)) < 1:
            raise InputError(f"scaling must be numbers of at least 1, got {self.scaling}")
        with_addresses = [
            parse_variant(without_memory(name)[0]).scheme in schemes.KNOW_MEMORY for name in self.variants
        ]
        if self.exponents and not any(with_addresses):
            raise InputError(
                f"exponents {self.exponents} are for models with addresses, which none of {', '.join(self.variants)} "
                f"has; add one of {', '.join(schemes.KNOW_MEMORY)}, or leave out --exponents"
            )

    def model_of(self, variant: str, sampler: Sampler) -> ModelConfig:
        """The settings of the model of a variant."""
        name, memory = without_memory(variant)
        if memory and parse_variant(name).scheme not in schemes.KNOW_MEMORY:
            able = ", ".join(schemes.KNOW_MEMORY)
            raise InputError(f"{variant!r} cannot have memory units, {able} can; leave out memory=true")
        return self.model.model(
            name,
            vocab_size=len(sampler.vocabulary),
            terminators=sampler.terminators,
            reader=sampler.reader if memory else (),
        )


def without_memory(variant: str) -> tuple[str, bool]:
    """The name without the option ``memory``, which is one of the units and not of the scheme.

    >>> without_memory("content:memory=true,competition=1")
    ('content:competition=1', True)
    """
    memory = parse_variant(variant).options.get(MEMORY, False)
    if not isinstance(memory, bool):
        raise InputError(f"memory in {variant!r} must be true or false")
    scheme, _, rest = variant.partition(":")
    options = rest.replace(f"{MEMORY}={str(memory).lower()}", "").replace(",,", ",").strip(",")
    return (f"{scheme}:{options}" if options else scheme), memory
