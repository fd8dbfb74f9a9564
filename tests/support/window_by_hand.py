"""The near window once more, token by token: who reads whom near, and by what angle a pair is rotated."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Token(NamedTuple):
    unit: int
    local: int
    begin: int
    """The position at which its unit begins; of memory, which takes no positions, any."""
    memory: bool

    def reads_near(self, key: Token, window: int) -> bool:
        if self.unit == key.unit:
            return True
        return not key.memory and key.begin >= self.begin - window


def tokens_by_hand(
    ids: Tensor,
    max_length: int,
    terminator: int,
    valid: Tensor | None = None,
    memory: Tensor | None = None,
    ends: Tensor | None = None,
) -> list[list[Token | None]]:
    """Of every row; None for padding. The mark of a unit's first token is the unit's."""
    texts: list[list[Token | None]] = []
    for row in range(len(ids)):
        text: list[Token | None] = []
        unit = local = begin = position = 0
        is_memory = False
        for column, token in enumerate(ids[row].tolist()):
            if valid is not None and not valid[row, column]:
                text.append(None)
                continue
            if local == 0:
                begin, is_memory = position, memory is not None and bool(memory[row, column])
            text.append(Token(unit, local, begin, is_memory))
            position, local = position + (not is_memory), local + 1
            is_end = token == terminator if ends is None else bool(ends[row, column])
            if is_end or local == max_length:
                unit, local = unit + 1, 0
        texts.append(text)
    return texts


def delta_of(query: Token, key: Token, address: Tensor, window: int, frequency: Tensor) -> Tensor:
    """By how much a key is rotated against its query; ``address`` is that of the key's unit."""
    if query.reads_near(key, window):
        distance = query.begin + query.local - key.begin - key.local
        return (-distance * frequency).expand_as(address)
    return address + (key.local - window - query.local) * frequency


def far_units_of(seen: list[Token | None], query: Token, window: int) -> int:
    return len({key.unit for key in seen if key is not None and not query.reads_near(key, window)})


def first_near(text: list[Token | None], window: int) -> int:
    """The column from which the last token that has a position reads near: what lies left of it is far."""
    columns = [(at, token) for at, token in enumerate(text) if token is not None and not token.memory]
    if not columns:
        return 0
    last = columns[-1][1]
    return next(at for at, token in columns if token.begin >= last.begin - window)
