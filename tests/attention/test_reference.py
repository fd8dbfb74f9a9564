"""The definition against the rule written out pair by pair."""

import math

import pytest
import torch
from torch import Tensor

import contentrope as cr
from tests.support.cases import CASES, Case, Inputs, make

SMALL = [Case(**{**c.__dict__, "seq": min(c.seq, 23), "max_length": min(c.max_length, 9)}) for c in CASES]


def rotated(vector: list[float], angles: list[float], layout: str, sign: int = 1) -> list[float]:
    """One vector rotated pair by pair."""
    out = list(vector)
    for pair, angle in enumerate(angles):
        a, b = (pair, pair + len(angles)) if layout == "half" else (2 * pair, 2 * pair + 1)
        cos, sin = math.cos(sign * angle), math.sin(sign * angle)
        out[a], out[b] = vector[a] * cos - vector[b] * sin, vector[b] * cos + vector[a] * sin
    return out


def pair_by_pair(inputs: Inputs, row: int, head: int, t: int) -> list[float]:
    """Output of one query, from the table of the causal rule, in plain Python."""
    units, group, window = inputs.units, inputs.q.shape[1] // inputs.k.shape[1], inputs.window
    kv_head = head // group
    alpha = inputs.competition[head].item() if isinstance(inputs.competition, Tensor) else inputs.competition
    frequencies = inputs.frequencies()[0].tolist()
    begins = positions_of_units(inputs, row)
    closes = bool(units.closes[row, t]) and not window

    def by_position(vector: list[float], position: int) -> list[float]:
        return rotated(vector, [position * f for f in frequencies], inputs.layout)

    def by_address(vector: list[float], s: int) -> list[float]:
        return rotated(vector, inputs.angles[row, s, kv_head].tolist(), inputs.layout)

    def is_near(s: int) -> bool:
        if units.unit[row, s] == units.unit[row, t]:
            return True
        counted = begins[s] is not None and begins[t] is not None
        return bool(window) and counted and begins[s] >= begins[t] - window

    seen = [s for s in range(t + 1) if bool(units.valid[row, t] & units.valid[row, s])]
    if units.memory[row, t]:
        seen = [s for s in seen if units.unit[row, s] == units.unit[row, t]]
    far_units = len({int(units.unit[row, s]) for s in seen if not is_near(s)})
    scores, values = [], []
    for s in seen:
        query, key = inputs.q[row, head, t].tolist(), inputs.k[row, kv_head, s].tolist()
        if is_near(s) and not closes:
            query, key = by_position(query, begins[t] or 0), by_position(key, begins[s] or 0)
        else:
            query = by_address(query, t) if closes else by_position(query, window)
            key = by_address(key, s)
        score = sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query))
        scores.append(score - (0.0 if is_near(s) else alpha * math.log(max(far_units, 1))))
        values.append(inputs.v[row, kv_head, s].tolist())
    if not scores:
        return [0.0] * inputs.q.shape[-1]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = sum(weights)
    return [sum(w * v[i] for w, v in zip(weights, values, strict=True)) / total for i in range(inputs.q.shape[-1])]


def positions_of_units(inputs: Inputs, row: int) -> list[int | None]:
    """Where each token's unit begins, counted in tokens that are neither padding nor memory, which have none."""
    found: list[int | None] = []
    counted = 0
    for s in range(inputs.units.seq_length):
        if bool(inputs.units.valid[row, s] & ~inputs.units.memory[row, s]):
            found.append(counted - int(inputs.units.local[row, s]))
            counted += 1
        else:
            found.append(None)
    return found


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_reference_follows_the_table_pair_by_pair(case: Case) -> None:
    inputs = make(case)
    out = cr.addressed_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.units,
        inputs.angles,
        backend="reference",
        competition=inputs.competition,
        pairs=inputs.layout,
        window=inputs.window,
        frequencies=inputs.frequencies(),
    )
    for row in range(case.batch):
        for head in range(case.heads):
            expected = [pair_by_pair(inputs, row, head, t) for t in range(case.seq)]
            torch.testing.assert_close(out[row, head], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_address_of_the_own_open_unit_is_never_read() -> None:
    inputs = make(Case("open", seq=9, end_rate=0.0))
    first, second = (
        cr.addressed_attention(inputs.q, inputs.k, inputs.v, inputs.units, angles, backend="reference")
        for angles in (inputs.angles, inputs.angles + 1.0)
    )
    assert torch.equal(first, second)


def test_closing_token_reads_its_own_unit_as_if_there_were_no_address() -> None:
    inputs = make(Case("closed", seq=9, end_rate=0.0, max_length=9))
    assert bool(inputs.units.closes[:, -1].all())
    first, second = (
        cr.addressed_attention(inputs.q, inputs.k, inputs.v, inputs.units, angles, backend="reference")
        for angles in (inputs.angles[:, :1].expand_as(inputs.angles), torch.zeros_like(inputs.angles))
    )
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
