"""Hit@5 and perplexity, against scores counted one character at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from experiments.facts.generator.sampler import Drawn, Sampler
from experiments.facts.generator.world import World
from experiments.facts.scoring import score


class Table(nn.Module):
    """Logits from a table by position: whatever is wanted."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.rows_seen: list[int] = []

    def forward(self, ids: Tensor) -> Tensor:
        assert not self.training
        begin = sum(self.rows_seen)
        self.rows_seen.append(len(ids))
        return self.logits[begin : begin + len(ids), : ids.shape[1]]


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return Sampler(World()).draw(7, torch.Generator().manual_seed(3), condition="same relation", distractors=2)


def table_of(drawn: Drawn, seed: int, sharpness: float) -> Tensor:
    torch.manual_seed(seed)
    logits = torch.randn(*drawn.ids.shape, 70)
    right = nn.functional.one_hot(drawn.ids.long().roll(-1, 1), 70)
    return logits + sharpness * right


@pytest.mark.parametrize("sharpness", [0.0, 1.5, 3.0])
@pytest.mark.parametrize("batch_tokens", [1, 700, 10**6])
def test_scores_are_those_counted_by_hand(drawn: Drawn, sharpness: float, batch_tokens: int) -> None:
    logits = table_of(drawn, 0, sharpness)
    found = score(Table(logits).train(), drawn, batch_tokens)
    hits, losses, best = [], [], []
    for row in range(len(drawn.ids)):
        hit = True
        for column in drawn.scored[row].nonzero()[:, 0].tolist():
            said, target = logits[row, column - 1], int(drawn.ids[row, column])
            hit &= target in said.topk(5).indices.tolist()
            losses.append(-float(said.double().log_softmax(-1)[target]))
            best.append(int(said.argmax()))
        hits.append(hit)
    summary = found.summary()
    assert found.hit.tolist() == hits
    assert found.best.tolist() == best
    assert summary["hit5"] == pytest.approx(sum(hits) / len(hits))
    assert summary["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert summary["examples"] == 7


def test_a_model_that_knows_nothing_and_one_that_knows_all(drawn: Drawn) -> None:
    nothing = score(Table(torch.zeros(*drawn.ids.shape, 70)), drawn).summary()
    assert nothing["hit5"] == 0, "characters that are all equally likely are no hits"
    assert nothing["perplexity"] == pytest.approx(70, rel=1e-5)
    everything = score(Table(table_of(drawn, 0, 100.0)), drawn).summary()
    assert everything["hit5"] == 1
    assert everything["perplexity"] == pytest.approx(1, abs=1e-5)
    assert score(Table(torch.full((*drawn.ids.shape, 70), torch.nan)), drawn).summary()["hit5"] == 0


@pytest.mark.parametrize(("more_likely", "is_hit"), [(0, True), (4, True), (5, False), (6, False)])
def test_the_fifth_is_a_hit_and_the_sixth_is_not(drawn: Drawn, more_likely: int, is_hit: bool) -> None:
    right = nn.functional.one_hot(drawn.ids.long().roll(-1, 1), 80).float()
    logits = right * 10
    logits[..., 80 - more_likely :] += 20  # ids beyond the vocabulary of the examples
    assert score(Table(logits), drawn).summary()["hit5"] == float(is_hit)


def test_one_missed_character_is_a_missed_example(drawn: Drawn) -> None:
    logits = table_of(drawn, 0, 100.0)
    row, column = drawn.scored.nonzero()[-1].tolist()
    logits[row, column - 1, int(drawn.ids[row, column])] = -100.0
    assert score(Table(logits), drawn).hit.tolist() == [index != row for index in range(7)]
