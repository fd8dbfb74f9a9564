"""What the paper reports: Table 1, perplexity on Tiny Shakespeare, trained on windows of 256 characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contentrope.reports.growth.curves import training_length
from contentrope.reports.read import frequency_layout, scheme_and_options

CORPUS, TRAINING_LENGTH = "shakespeare", 256
LENGTHS = (256, 512, 1024, 2048, 4096)
TABLE_1 = {
    "content": dict(zip(LENGTHS, (4.81, 4.74, 4.85, 4.83, 4.86), strict=True)),
    "random": dict(zip(LENGTHS, (4.89, 4.79, 4.90, 4.87, 4.91), strict=True)),
    "alibi": dict(zip(LENGTHS, (4.96, 4.94, 4.96, 4.93, 4.93), strict=True)),
    "rope": dict(zip(LENGTHS, (4.70, 5.99, 8.23, 10.71, 13.36), strict=True)),
}


def paper_curve(results: Mapping[str, Any], variant: str) -> dict[int, float]:
    """The paper's perplexity by length for what ``variant`` repeats; empty where the paper has none.

    The paper does not say how its frequencies are laid out over the heads, so its numbers stand beside both layouts.
    """
    scheme, _ = scheme_and_options(variant)
    corpus = results["corpus"]
    # A search for settings scores other text than the paper did.
    alike = corpus.get("name") == CORPUS and not corpus.get("search_share")
    alike = alike and training_length(results) == TRAINING_LENGTH
    if not alike or frequency_layout(results, variant) is None:
        return {}
    return TABLE_1.get(scheme, {})
