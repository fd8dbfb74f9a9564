"""Random texts with their masks, every rule for them, and segmentation token by token as a loop."""

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from contentrope.units import Boundaries, FixedLength, Terminators, TextRule

TENSORS = ("unit", "local", "start", "closes", "valid", "memory")
STATE_TENSORS = ("rule", "next_unit", "next_local", "start", "memory", "reader_seen")
VOCABULARY = ["a", "B", "Mr", ". ", "?", "\n", "\n\n", "x.\n", " |", "|", "3", "end."]
quick = settings(max_examples=60, deadline=None)


@dataclass
class Case:
    ids: torch.Tensor
    max_length: int
    valid: torch.Tensor | None
    memory: torch.Tensor | None
    reader: tuple[int, ...]
    generator: torch.Generator

    @property
    def masks(self):
        return {"valid": self.valid, "memory": self.memory}

    def columns(self, begin, end):
        return {name: None if mask is None else mask[:, begin:end] for name, mask in self.masks.items()}


@st.composite
def cases(draw, least=0):
    shape = (draw(st.integers(1, 3)), draw(st.integers(least, 24)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def mask(density):
        return torch.rand(shape, generator=generator) < density

    marking = draw(st.sampled_from(["none", "memory", "reader"]))
    return Case(
        ids=torch.randint(0, len(VOCABULARY), shape, generator=generator),
        max_length=draw(st.integers(1, 7)),
        valid=mask(draw(st.sampled_from([0.0, 0.5, 0.9]))) if draw(st.booleans()) else None,
        memory=mask(0.5) if marking == "memory" else None,
        reader=(8, 9) if marking == "reader" else (),
        generator=generator,
    )


def every_rule(case):
    text = {"record": {"marker": ".\nB"}, "document": {"marker": "||"}}
    return [
        Terminators({0, 5}),
        Terminators({0, 1, 2, 3, 5}),
        Terminators(()),
        FixedLength(3),
        Boundaries(torch.rand(case.ids.shape, generator=case.generator) < 0.3),
        *(
            TextRule(kind, VOCABULARY, **text.get(kind, {}))
            for kind in ("line", "sentence", "paragraph", "record", "document")
        ),
    ]


def segment_by_loop(case, terminators):
    """Token by token, as the definition reads."""
    rows = []
    for row, ids in enumerate(case.ids.tolist()):
        unit, length, first, mark, marker_seen, columns = 0, 0, 0, False, False, []
        for t, token in enumerate(ids):
            if case.valid is not None and not case.valid[row, t]:
                columns.append((unit, 0, t, False, False, False))
                continue
            marker_seen = marker_seen or token in case.reader
            if length == 0:
                first = t
                marked_by_mask = case.memory is not None and bool(case.memory[row, t])
                mark = not marker_seen if case.reader else marked_by_mask
            closes = token in terminators or length == case.max_length - 1
            columns.append((unit, length, first, closes, True, mark))
            unit, length = (unit + 1, 0) if closes else (unit, length + 1)
        rows.append(columns)
    return rows


def as_rows(units):
    tables = [getattr(units, name).tolist() for name in TENSORS]
    return [list(zip(*(table[row] for table in tables), strict=True)) for row in range(units.batch_size)]


def same_units(left, right):
    assert all(torch.equal(getattr(left, name), getattr(right, name)) for name in TENSORS)
    assert (left.has_memory, left.offset) == (right.has_memory, right.offset)


def same_state(left, right):
    assert all(torch.equal(getattr(left, name), getattr(right, name)) for name in STATE_TENSORS)
    assert (left.has_memory, left.columns) == (right.has_memory, right.columns)


class CountOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))
