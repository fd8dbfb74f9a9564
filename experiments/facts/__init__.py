"""Retrieval from facts: can a model find the fact that is asked for, among others?

Here are the rows of the paper's table, which measurements and reports share; reports import no torch.
"""

from itertools import product
from typing import Literal

CONDITIONS = ("single fact", "same entities", "same relation")
"""What the facts beside the asked one are."""
KINDS: tuple[Literal["chain2", "chain3"], ...] = ("chain2", "chain3")
"""Facts about two entities, and about three."""
NAMES = ("train", "test")
"""Names seen in training, and others."""
ROWS = {", ".join(row): row for row in product(CONDITIONS, KINDS, NAMES)}
"""By title."""
