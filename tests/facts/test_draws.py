"""Integers drawn for many rows at once: in range, without repetition, all orders equally likely."""

from collections import Counter
from itertools import permutations

import torch
from hypothesis import given
from hypothesis import strategies as st

from contentrope.facts.draws import below, shuffled, without_repetition
from tests.facts.chances import assert_equally_likely

seeds = st.integers(0, 2**32)


@given(seeds, st.lists(st.integers(1, 10), min_size=1, max_size=20))
def test_below_stays_below(seed: int, bounds: list[int]) -> None:
    drawn = below(torch.tensor(bounds), torch.Generator().manual_seed(seed)).tolist()
    assert all(0 <= number < bound for number, bound in zip(drawn, bounds, strict=True))


@given(seeds, st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(0, 300))
def test_no_number_twice(seed: int, pools: list[int], count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = without_repetition(torch.tensor(pools).unsqueeze(1), count, generator)
    assert drawn.shape == (len(pools), count)
    for row, pool in zip(drawn.tolist(), pools, strict=True):
        meant = row[:pool]
        assert len(set(meant)) == len(meant)
        assert set(meant) <= set(range(pool))


def test_every_order_is_equally_likely() -> None:
    drawn = without_repetition(torch.full((24_000, 1), 4), 3, torch.Generator().manual_seed(0))
    assert_equally_likely(Counter(map(tuple, drawn.tolist())), list(permutations(range(4), 3)))


def test_shuffling_puts_what_is_present_first() -> None:
    present = (torch.arange(4) < torch.tensor([[1], [3], [4]])).repeat(4_000, 1)
    order = shuffled(present, torch.Generator().manual_seed(0))
    assert torch.equal(order.sort(1).values, torch.arange(4).expand_as(order))
    assert torch.equal(present.gather(1, order), present)
    assert_equally_likely(Counter(map(tuple, order[1::3, :3].tolist())), list(permutations(range(3))))
