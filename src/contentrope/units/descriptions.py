"""How a rule is written down beside saved weights, and how it becomes a rule again.

A description is the rule's class by name and its parameters, as JSON: ``{"rule": "FixedLength", "parameters": {"n":
8}}``. Two rules with one description end the same units. What a rule says of itself is its own ``describe()``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from contentrope.errors import InputError
from contentrope.units.rules import Boundaries, FixedLength, Rule, Terminators
from contentrope.units.text import TextRule

RULES: dict[str, type] = {rule.__name__: rule for rule in (Boundaries, FixedLength, Terminators, TextRule)}
_FINGERPRINT = "fingerprint"


@runtime_checkable
class DescribedRule(Rule, Protocol):
    """A rule that can be saved."""

    def describe(self) -> Mapping[str, Any]:
        """Everything that decides where units end, as JSON."""


def describe(rule: Rule) -> dict[str, Any]:
    """The description of a rule; of one that does not describe itself, its name alone.

    >>> describe(FixedLength(8))
    {'rule': 'FixedLength', 'parameters': {'n': 8}}
    """
    name = type(rule).__qualname__
    if not isinstance(rule, DescribedRule):
        return {"rule": name}
    if RULES.get(name, type(rule)) is not type(rule):
        raise InputError(f"{type(rule)} is named like contentrope's own {name}; give it another name")
    said = rule.describe()
    try:
        parameters = json.loads(json.dumps(dict(said), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name}.describe() gave {said!r}, which JSON cannot hold: {error}") from error
    return {"rule": name, "parameters": parameters}


def require_description(rule: Rule) -> None:
    """Refuse a rule that would be saved by its name alone: with other parameters it would be taken for the same."""
    if not isinstance(rule, DescribedRule):
        name = type(rule).__qualname__
        raise InputError(
            f"the rule {name} cannot be saved: give it a method describe() that returns all that decides where its "
            "units end, as a dict of JSON, e.g. {'every': self.every}"
        )


def rule_described(description: Mapping[str, Any], texts: Callable[[], Sequence[str]]) -> Rule:
    """The rule that a description tells of; ``texts`` gives the vocabulary that text is cut with.

    >>> rule_described({"rule": "Terminators", "parameters": {"ids": [3]}}, list)
    Terminators(ids=(3,))
    """
    description = upgraded(description)
    name, parameters = description["rule"], description.get("parameters", {})
    if name not in (Terminators.__name__, FixedLength.__name__, TextRule.__name__):
        raise InputError(f"units end by the rule {name}, which only its owner can make again: pass units={name}(...)")
    try:
        if name == TextRule.__name__:
            return TextRule(parameters["kind"], texts(), marker=parameters["marker"])
        return RULES[name](**parameters)
    except (KeyError, TypeError) as error:
        raise InputError(f"the units {dict(description)!r} are damaged: {error!r}") from error


def upgraded(saved: Any) -> dict[str, Any]:
    """A description as it is written today; what an earlier version did not write down stays out.

    >>> upgraded({"length": 8})
    {'rule': 'FixedLength', 'parameters': {'n': 8}}
    """
    if not isinstance(saved, Mapping):
        raise InputError(f"units are {saved!r}, which describes no rule")
    if isinstance(saved.get("rule"), str) and isinstance(saved.get("parameters", {}), Mapping):
        return dict(saved)
    if "kind" in saved:
        return {"rule": TextRule.__name__, "parameters": {"marker": None, **saved}}
    if "length" in saved:
        return {"rule": FixedLength.__name__, "parameters": {"n": saved["length"]}}
    if "terminators" in saved:
        return {"rule": Terminators.__name__, "parameters": {"ids": saved["terminators"]}}
    raise InputError(f"units are {saved!r}, which describes no rule")


def as_far_as_said(ours: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """``ours`` without what an earlier version did not write down of ``saved``, so that the two can be compared."""
    if "parameters" not in saved:
        return {"rule": ours["rule"]}
    parameters = ours.get("parameters", {})
    said = {name: value for name, value in parameters.items() if name != _FINGERPRINT or name in saved["parameters"]}
    return {**ours, "parameters": said} if "parameters" in ours else dict(ours)
