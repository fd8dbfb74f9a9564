"""The rows of the paper's table: three kinds of prefix, two kinds of fact, names seen in training and others."""

from __future__ import annotations

from dataclasses import dataclass

from contentrope.facts import Condition, Kind, Names

CONDITIONS: dict[str, Condition] = {
    "single fact": "single",
    "same entities": "same entities",
    "same relation": "same relation",
}
KINDS: tuple[Kind, ...] = ("chain2", "chain3")
NAMES: tuple[Names, ...] = ("train", "test")


@dataclass(frozen=True)
class Row:
    """A row of the table: what the facts beside the asked one are, how long a fact is, and whose names."""

    condition: str
    kind: Kind
    names: Names

    @property
    def title(self) -> str:
        return f"{self.condition}, {self.kind}, {self.names}"


def rows() -> list[Row]:
    return [Row(condition, kind, names) for condition in CONDITIONS for kind in KINDS for names in NAMES]


ROW_TO_LOOK_AT = Row("same relation", "chain2", "test")
