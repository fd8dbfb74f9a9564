"""What the paper reports: its table of complete results for retrieval from serialized facts."""

from __future__ import annotations

import json
from typing import Any

from contentrope.reports.facts.rows import HIT, ROWS, Metric
from contentrope.reports.read import ADDED, Results, scheme_and_options, setting

CONTENT = "content"
WEAK, STRONG = 2.0**-8, 2.0**-2
"""The slopes of its two ALiBi models, which it prints as .004 and .25."""
_COLUMNS = ("rope", f"alibi {WEAK}", f"alibi {STRONG}", CONTENT)
_HITS = (
    (1.000, 0.112, 0.959, 1.000), (0.916, 0.029, 0.653, 0.898),
    (0.957, 0.008, 0.825, 1.000), (0.728, 0.000, 0.382, 0.800),
    (1.000, 0.250, 0.871, 1.000), (0.964, 0.102, 0.628, 0.970),
    (0.696, 0.014, 0.510, 1.000), (0.603, 0.000, 0.245, 0.878),
    (0.323, 0.029, 0.034, 0.665), (0.208, 0.010, 0.015, 0.523),
    (0.042, 0.001, 0.003, 0.366), (0.016, 0.000, 0.002, 0.190),
)  # fmt: skip
_PERPLEXITIES = (
    (1.13, 15.22, 1.47, 1.09), (1.70, 59.05, 3.20, 1.70),
    (1.28, 14.44, 1.49, 1.22), (2.23, 58.36, 3.60, 2.01),
    (1.17, 10.63, 1.80, 1.08), (1.43, 22.86, 3.57, 1.36),
    (2.17, 15.24, 2.14, 1.22), (3.03, 31.33, 4.66, 1.68),
    (2.90, 23.37, 21.74, 2.13), (6.32, 46.70, 384.65, 3.83),
    (7.88, 28.00, 16.13, 2.17), (26.38, 50.41, 375.92, 5.51),
)  # fmt: skip
NAMES, UNSEEN_NAMES, DISTRACTORS = 3000, 100, 4


def _columns(lines: tuple[tuple[float, ...], ...]) -> dict[str, dict[str, float]]:
    columns = zip(_COLUMNS, zip(*lines, strict=True), strict=True)
    return {name: dict(zip(ROWS, column, strict=True)) for name, column in columns}


TABLE = {"hit5": _columns(_HITS), "perplexity": _columns(_PERPLEXITIES)}
"""By metric, by model, by row; a model is named as in ``repeated``."""


def repeated(variant: str) -> str | None:
    """Which of the paper's models a variant repeats.

    >>> repeated("rope"), repeated("alibi:slopes=[0.25]"), repeated("content:competition=1")
    ('rope', 'alibi 0.25', None)
    """
    scheme, options = scheme_and_options(variant)
    if ADDED in variant:
        return None
    if scheme == "alibi" and set(options) == {"slopes"}:
        model = f"alibi {_only_number(options['slopes'])}"
        return model if model in _COLUMNS else None
    return scheme if scheme in ("rope", CONTENT) and not options else None


def _only_number(text: str) -> Any:
    """The one number in a list, as the paper's model has one head."""
    try:
        (value,) = json.loads(text)
    except (ValueError, TypeError):
        return None
    return value


def asks_the_same(results: Results) -> bool:
    """Whether the rows mean what they mean in the paper: as many names and distractors."""
    corpus = results["corpus"]
    names = corpus.get("names"), corpus.get("test_names")
    return names == (NAMES, UNSEEN_NAMES) and setting(results, "distractors") == DISTRACTORS


def trained_alike(results: Results) -> bool:
    """Whether every training example has one fact, as in the paper."""
    return list(setting(results, "facts") or ()) == [1, 1]


def paper_scores(results: Results, variant: str, metric: Metric = HIT) -> dict[str, float]:
    """The paper's numbers by row for what ``variant`` repeats; empty where the paper has none."""
    model = repeated(variant) if asks_the_same(results) and trained_alike(results) else None
    return TABLE[metric.key][model] if model else {}
