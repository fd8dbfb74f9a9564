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

Texts = Callable[[], Sequence[str]]
REMADE: dict[type, Callable[[Mapping[str, Any], Texts], Rule] | None] = {
    Terminators: lambda parameters, texts: Terminators(**parameters),
    FixedLength: lambda parameters, texts: FixedLength(**parameters),
    TextRule: lambda parameters, texts: TextRule(parameters["kind"], texts(), marker=parameters["marker"]),
    Boundaries: None,
}
"""Our own rules, and how each is made again of its description; None: its description does not hold all of it."""
RULES = {rule.__name__: rule for rule in REMADE}


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
    given = rule.describe()
    try:
        parameters = json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name}.describe() gave {given!r}, which JSON cannot hold: {error}") from error
    return {"rule": name, "parameters": parameters}


def require_description(rule: Rule) -> None:
    """Refuse a rule that would be saved by its name alone: with other parameters it would be taken for the same."""
    if not isinstance(rule, DescribedRule):
        name = type(rule).__qualname__
        raise InputError(
            f"the rule {name} cannot be saved: give it a method describe() that returns all that decides where its "
            "units end, as a dict of JSON, e.g. {'every': self.every}"
        )


def rule_described(description: Mapping[str, Any], texts: Texts) -> Rule:
    """The rule that a description tells of; ``texts`` gives the vocabulary that text is cut with.

    >>> rule_described({"rule": "Terminators", "parameters": {"ids": [3]}}, list)
    Terminators(ids=(3,))
    """
    description = upgraded(description)
    name = description["rule"]
    if name not in RULES or (make := REMADE[RULES[name]]) is None:
        raise InputError(f"units end by the rule {name}, which only its owner can make again: pass units={name}(...)")
    try:
        return make(description.get("parameters", {}), texts)
    except (KeyError, TypeError) as error:
        raise InputError(f"the units {dict(description)!r} are damaged: {error!r}") from error


def upgraded(saved: Any) -> dict[str, Any]:
    """A description as it is written today; what an earlier version did not write down stays out.

    >>> upgraded({"length": 8})
    {'rule': 'FixedLength', 'parameters': {'n': 8}}
    """
    if isinstance(saved, Mapping):
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
    said = {name: value for name, value in parameters.items() if name != "fingerprint" or name in saved["parameters"]}
    return {**ours, "parameters": said} if "parameters" in ours else dict(ours)
