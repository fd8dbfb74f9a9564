"""Is it a result of retrieval from facts?"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from contentrope.errors import InputError
from contentrope.reports.checks import (
    check_costs,
    check_list,
    is_count,
    is_list_of,
    is_number,
    is_perplexity,
    is_positive_count,
    require_object,
)
from contentrope.reports.facts.rows import KINDS, ROWS

MOST_CELLS = 10**5
"""Of a picture: what is beyond would take minutes to draw."""
ROUNDING = 0.01


def check_config(config: Mapping[str, Any]) -> None:
    for name in ("facts", "scaling"):
        check_list(config, name, int)
    if config.get("facts") is not None and len(config["facts"]) != 2:
        raise InputError(f"config.facts is {config['facts']!r}, not the least and the most facts of an example")
    for name in ("distractors", "examples"):
        if not (config.get(name) is None or is_count(config[name])):
            raise InputError(f"config.{name} is {config[name]!r}, not a whole number")


def check_run(where: str, run: Mapping[str, Any]) -> None:
    _check_rows(f"rows in {where}", run.get("rows"), where)
    check_costs(where, run)
    for name, check in _OPTIONAL.items():
        if run.get(name) is not None:
            check(f"{name} in {where}", run[name])


def _check_rows(what: str, rows: Any, where: str) -> None:
    require_object(what, rows)
    for row, score in rows.items():
        if row not in ROWS:
            raise InputError(f"{what} has {row!r}, which is none of the twelve rows")
        _check_score(f"{row} in {where}", score)


def _check_exponents(where: str, exponents: Any) -> None:
    require_object(where, exponents)
    for exponent, rows in exponents.items():
        try:
            finite = isfinite(float(exponent))
        except ValueError:
            finite = False
        if not finite:
            raise InputError(f"{where} has {exponent!r}, which is not a finite number")
        _check_rows(f"{exponent} of {where}", rows, f"{exponent} of {where}")


def _check_score(where: str, score: Any) -> None:
    require_object(where, score)
    if not _is_share(score.get("hit5")):
        raise InputError(f"hit5 of {where} is {score.get('hit5')!r}, not a share from 0 to 1")
    if "perplexity" not in score or not is_perplexity(score["perplexity"]):
        raise InputError(f"perplexity of {where} is {score.get('perplexity')!r}, not a positive number or null")
    if not (score.get("examples") is None or is_count(score["examples"])):
        raise InputError(f"examples of {where} is {score['examples']!r}, not a whole number")


def _check_scaling(where: str, scaling: Any) -> None:
    require_object(where, scaling)
    for count, by_kind in scaling.items():
        if not is_positive_count(count):
            raise InputError(f"{where} has {count!r} distractors, which is not a number from 1 on")
        require_object(f"{count} of {where}", by_kind)
        for kind, score in by_kind.items():
            if kind not in KINDS:
                raise InputError(f"{count} of {where} has {kind!r}, which is neither {' nor '.join(KINDS)}")
            _check_score(f"{kind}, {count} of {where}", score)


def _check_order(where: str, order: Any) -> None:
    require_object(where, order)
    counts = all(is_count(order.get(name)) for name in ("examples", "permutations"))
    change = order.get("largest_change")
    if not (counts and _is_share(order.get("answers_changed")) and is_number(change) and change >= 0):
        raise InputError(f"{where} needs examples, permutations, the share answers_changed, and largest_change")


def _check_losses(where: str, losses: Any) -> None:
    if not (isinstance(losses, list) and all(_is_pair(point) and is_count(point[0]) for point in losses)):
        raise InputError(f"{where} should be a list of steps and losses")


def _check_inside(where: str, inside: Any) -> None:
    require_object(where, inside)
    tokens, texts, scored = (inside.get(name) for name in ("tokens", "unit_texts", "scored"))
    if not (is_list_of(str, tokens) and is_list_of(str, texts) and texts):
        raise InputError(f"{where} needs tokens and unit_texts, both lists of text")
    if not (isinstance(scored, list) and scored and all(is_count(at) and at < len(tokens) for at in scored)):
        raise InputError(f"{where} needs scored, the places of some of its {len(tokens)} tokens")
    if not (is_count(inside.get("asked")) and inside["asked"] < len(texts)):
        raise InputError(f"{where} needs asked, the number of one of its {len(texts)} units")
    _check_attention(f"attention of {where}", inside.get("attention"), len(scored), len(texts))


def _check_attention(where: str, layers: Any, characters: int, units: int) -> None:
    if not isinstance(layers, list) or not layers or len(layers) * characters * units > MOST_CELLS:
        raise InputError(f"{where} should be a list of layers, with at most {MOST_CELLS:,} numbers in all")
    for layer in layers:
        shares = isinstance(layer, list) and all(isinstance(line, list) and all(map(_is_sum, line)) for line in layer)
        if not shares or [len(line) for line in layer] != [units] * characters:
            raise InputError(
                f"{where} needs {units} shares from 0 to 1 for each of {characters} characters in every layer"
            )


def _check_addresses(where: str, addresses: Any) -> None:
    require_object(where, addresses)
    points, relations = addresses.get("points"), addresses.get("relations")
    if not (isinstance(points, list) and 0 < len(points) <= MOST_CELLS and all(map(_is_pair, points))):
        raise InputError(f"{where} needs points, a list of pairs of numbers")
    if not is_list_of(str, relations) or len(relations) != len(points):
        raise InputError(f"{where} needs relations, one for each of its {len(points)} points")
    explained = addresses.get("explained")
    if not (explained is None or (_is_pair(explained) and all(map(_is_share, explained)))):
        raise InputError(f"{where} has explained {explained!r}, not two shares")


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _is_sum(value: Any) -> bool:
    """A sum of shares, which may be off by the rounding of a GPU."""
    return is_number(value) and -ROUNDING <= value <= 1 + ROUNDING


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value))


_OPTIONAL = {
    "exponents": _check_exponents,
    "scaling": _check_scaling,
    "order": _check_order,
    "losses": _check_losses,
    "inside": _check_inside,
    "addresses": _check_addresses,
}
