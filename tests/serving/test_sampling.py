"""What a request draws depends on its own settings and seed, and on nobody else in the batch."""

from __future__ import annotations

import torch

from contentrope.serving.sampling import Sampling, draw

LOGITS = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GREEDY = Sampling(temperature=0)


def drawn(samplings: list[Sampling], count: int = 20) -> list[list[int]]:
    generators = [one.generator() for one in samplings]
    return [draw(LOGITS[: len(samplings)], samplings, generators) for _ in range(count)]


def test_greedy_rows_take_the_likeliest_beside_rows_that_draw() -> None:
    likeliest = LOGITS.argmax(-1).tolist()
    for first, second, third in drawn([GREEDY, Sampling(seed=1), GREEDY]):
        assert [first, third] == [likeliest[0], likeliest[2]]
        assert second < 50


def test_a_seed_decides_whoever_else_draws() -> None:
    mine = Sampling(seed=5, temperature=1.5)
    alone = [first for (first,) in drawn([mine])]
    beside = [row[0] for row in drawn([mine, Sampling(seed=9), Sampling()])]
    assert alone == beside
    assert alone != [first for (first,) in drawn([Sampling(seed=6, temperature=1.5)])]


def test_without_a_seed_two_requests_draw_otherwise() -> None:
    assert drawn([Sampling()]) != drawn([Sampling()])


def test_top_p_leaves_the_likely_ones() -> None:
    assert {first for (first,) in drawn([Sampling(top_p=0.0, seed=1)])} == {int(LOGITS[0].argmax())}
    few = {first for (first,) in drawn([Sampling(top_p=0.3, seed=1)], 200)}
    many = {first for (first,) in drawn([Sampling(seed=1)], 200)}
    assert len(few) < len(many)
