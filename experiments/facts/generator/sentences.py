"""How examples are written: facts, then a text that asks for one of them.

==========  =====================================  =========================  ==========
layout      an example with two facts              ends a unit                memory
==========  =====================================  =========================  ==========
``end``     ``FACT;FACT;| if adam is ...``         ``;``                      the facts
``apart``   the same tokens                        ``;`` and ``|``            the facts
``bar``     ``FACT|FACT| if adam is ...``          ``|``                      none
==========  =====================================  =========================  ==========

So ``|`` is the first token of the text (``end``), a unit of its own (``apart``), or the end of every fact (``bar``).
The paper leaves open how facts are closed.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.errors import InputError
from experiments.facts.generator.words import ROLES, SLOTS, TARGETS, TEMPLATES
from experiments.facts.generator.world import LONGEST, LOWEST, ORDERS, RELATIONS, SIZE, Facts, Kind, sizes_of

Layout = Literal["end", "apart", "bar"]


SIGNS: dict[Layout, tuple[str, str, str]] = {
    "end": (";", "| ", ";"),
    "apart": (";", "| ", ";|"),
    "bar": ("|", " ", "|"),
}
"""What closes a fact, what opens the text, and which signs end a unit."""
PADDING = 0
"""The id that stands for nothing."""
EMPTY = 0
"""The piece without tokens: a place that a row does not use."""
PIECES_PER_FACT = 7
"""A marker and a name for each of three entities, then what closes the fact."""
ORDER_TABLE = torch.tensor([(*order, 2)[:3] for order in ORDERS])
"""A pair has a third place that is empty."""


class FactVocabulary:
    """Padding, letters, space, punctuation, ``;``, ``|`` and the role markers.

    >>> vocabulary = FactVocabulary()
    >>> ids = vocabulary.encode("<son> adam;")
    >>> len(vocabulary), len(ids), vocabulary.decode(ids)
    (63, 7, '<son> adam;')
    """

    def __init__(self) -> None:
        self.symbols = ("", *string.ascii_lowercase, *" ,.-;|", *(f"<{role}>" for role in ROLES))
        """What each id stands for; padding stands for nothing."""
        self._ids = {symbol: identifier for identifier, symbol in enumerate(self.symbols) if symbol}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        symbols = re.findall(r"<[^<>]*>|.", text, re.DOTALL)
        for symbol in symbols:
            if symbol not in self._ids:
                raise InputError(
                    f"{symbol!r} is not among the {len(self)} symbols; "
                    "use lowercase letters, space, the characters , . - ; | and role markers such as <son>"
                )
        return [self._ids[symbol] for symbol in symbols]

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        ids = ids if isinstance(ids, Tensor) else torch.tensor(list(ids), dtype=torch.int64)
        if ids.ndim != 1:
            raise InputError(f"decode takes one row of ids, got shape {tuple(ids.shape)}; decode row by row")
        for identifier in ids.tolist():
            if not 0 <= identifier < len(self):
                raise InputError(f"id {identifier} lies outside the vocabulary (ids 0..{len(self) - 1})")
        return "".join(self.symbols[identifier] for identifier in ids.tolist())


class PieceTable:
    """Rows of tokens from rows of pieces: names, markers, words and whatever else repeats is encoded once.

    >>> table = PieceTable(lambda text: [ord(character) for character in text])
    >>> first = table.add(["to", "be"])
    >>> table.freeze("cpu")
    >>> table.assemble(torch.tensor([[first, EMPTY, first + 1]]), torch.tensor([[False, False, True]]), width=5)[0]
    tensor([[116, 111,  98, 101,   0]])
    """

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._pieces: list[list[int]] = [[]]

    def add(self, texts: Sequence[str]) -> int:
        """The first of their ids, which follow each other."""
        first = len(self._pieces)
        self._pieces += map(self._encode, texts)
        return first

    def freeze(self, device: torch.device | str) -> None:
        # One token more: a row that ends with an empty piece points there.
        flat = [token for piece in self._pieces for token in piece] + [PADDING]
        self.tokens = torch.tensor(flat, device=device)
        self.lengths = torch.tensor(list(map(len, self._pieces)), device=device)
        self.starts = self.lengths.cumsum(0) - self.lengths

    def assemble(
        self, pieces: Int[Tensor, "rows pieces"], marked: Bool[Tensor, "rows pieces"], width: int
    ) -> tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows"], Bool[Tensor, "rows tokens"]]:
        """Tokens, padded at the end, the length of each row, and which tokens belong to marked pieces."""
        lengths = self.lengths[pieces]
        ends = lengths.cumsum(1)
        column = torch.arange(width, device=pieces.device).expand(len(pieces), -1)
        # The piece a token belongs to is the first that ends after it; beyond the row any will do.
        which = torch.searchsorted(ends, column.contiguous(), right=True).clamp(max=pieces.shape[1] - 1)
        shift = self.starts[pieces] - (ends - lengths)
        inside = column < ends[:, -1:]
        source = torch.where(inside, column + shift.gather(1, which), len(self.tokens) - 1)
        return self.tokens[source], ends[:, -1], marked.gather(1, which) & inside


class Writer:
    """The pieces of a layout and some names, and how facts and texts are put together from them."""

    def __init__(self, names: tuple[str, ...], layout: Layout, vocabulary: FactVocabulary) -> None:
        fact_end, self.text_start, _ = SIGNS[layout]
        self.table = PieceTable(vocabulary.encode)
        first_marker = self.table.add([f"<{role}> " for role in ROLES])
        later_marker = self.table.add([f" <{role}> " for role in ROLES])
        self.markers = torch.tensor([first_marker, later_marker, later_marker])
        self.role, self.name = self.table.add(ROLES), self.table.add(names)
        self.fact_end = self.table.add([fact_end])
        self._add_templates()

    def _add_templates(self) -> None:
        """By template, the pieces of its text: a literal one, or EMPTY where ``slots`` has an index of SLOTS."""
        slots, literals = [], []
        for template in (*TEMPLATES[2], *TEMPLATES[3]):
            parts = list(string.Formatter().parse(self.text_start + template))  # each a literal and the slot behind it
            parts += [("", None, None, None)] * (len(SLOTS) + 1 - len(parts))
            slots.append([index for _, slot, *_ in parts for index in (-1, SLOTS.index(slot) if slot else -1)])
            literals.append([piece for text, *_ in parts for piece in (self.table.add([text]), EMPTY)])
        self.slots, self.literals = torch.tensor(slots), torch.tensor(literals)
        self.targets = torch.isin(self.slots, torch.tensor([SLOTS.index(target) for target in TARGETS]))

    def facts(
        self, facts: Facts, order: Int[Tensor, "rows facts"], present: Bool[Tensor, "rows facts"]
    ) -> Int[Tensor, "rows pieces"]:
        """Every fact with its entities in this order (an index of ORDERS); empty where none is present."""
        names, roles = _in_order(facts, order)
        exists = torch.arange(3) < SIZE[facts.relation].unsqueeze(-1)
        pairs = torch.stack((self.markers + roles, self.name + names), dim=-1)
        pairs = pairs.where(exists.unsqueeze(-1), EMPTY).flatten(2)
        closed = torch.cat((pairs, torch.full_like(pairs[..., :1], self.fact_end)), dim=-1)
        return closed.where(present.unsqueeze(-1), EMPTY).flatten(1)

    def text(
        self, asked: Facts, order: Int[Tensor, "rows 1"], template: Int[Tensor, "rows"]
    ) -> tuple[Int[Tensor, "rows pieces"], Bool[Tensor, "rows pieces"]]:
        """The text that asks for each fact, and which of its pieces are target names."""
        names, roles = _in_order(asked, order)
        # As in SLOTS: each entity's name, then its role.
        values = torch.stack((self.name + names, self.role + roles), dim=-1).flatten(1)
        row = template + len(TEMPLATES[2]) * (SIZE[asked.relation[:, 0]] - 2)
        slots = self.slots[row]
        return torch.where(slots < 0, self.literals[row], values.gather(1, slots.clamp(min=0))), self.targets[row]

    def width(self, kind: Kind, facts: int) -> int:
        """Tokens of the longest example with so many facts."""
        sizes = sizes_of(kind)
        # No space before the first marker, but a sign behind the last name.
        return facts * max(sizes) * (len(" m ") + LONGEST) + max(map(self._longest_text, sizes))

    def _longest_text(self, size: int) -> int:
        literal = max(len(template.format(**dict.fromkeys(SLOTS, ""))) for template in TEMPLATES[size])
        roles = max(len("".join(relation.roles)) for relation in RELATIONS if len(relation.roles) == size)
        return len(self.text_start) + literal + roles + size * LONGEST


def _in_order(
    facts: Facts, order: Int[Tensor, "rows facts"]
) -> tuple[Int[Tensor, "rows facts 3"], Int[Tensor, "rows facts 3"]]:
    """Names and roles of the entities in this order (an index of ORDERS); a pair's third is one too many."""
    order = ORDER_TABLE[order]
    roles = LOWEST[facts.relation].unsqueeze(-1) + order
    return facts.entities.gather(2, order), roles.clamp(max=len(ROLES) - 1)
