"""Facts hidden in a text and asked for at its end: where they stand, what counts, what a row depends on."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from contentrope.errors import InputError
from contentrope.training import IGNORED, Batch, Mixed, RetrievalRows, Windows
from contentrope.training.made_facts import made_facts
from contentrope.training.retrieval import ANSWER_WEIGHT, MADE_WEIGHT

LENGTH = 1200


class Letters:
    """A token for each character."""

    def __call__(self, texts: list[str], **options: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def ids_of(text: str) -> Tensor:
    return torch.tensor([ord(letter) for letter in text])


def read(ids: Tensor) -> str:
    return Letters().decode(ids.tolist())


LINES = "".join(f"~{number} a~b, c~d; e~f!\n" for number in range(400))
"""No fact has a tilde in it, every word of the text has."""
ROWS = RetrievalRows(ids_of(LINES), LENGTH, Letters())


def whole(batch: Batch) -> Tensor:
    return torch.cat([batch.inputs["ids"][:, :1], batch.targets], 1)


def test_a_row_depends_on_seed_step_and_its_number_alone() -> None:
    rows = ROWS.at(3, rows=4, seed=5).targets
    torch.rand(5), np.random.rand(5)
    assert torch.equal(ROWS.at(3, rows=4, seed=5).targets, rows)
    assert torch.equal(ROWS.at(3, rows=2, seed=5).targets, rows[:2])
    for other in (ROWS.at(4, rows=4, seed=5), ROWS.at(3, rows=4, seed=6)):
        assert all(not torch.equal(row, before) for row, before in zip(other.targets, rows, strict=True))
    assert len({read(row) for row in rows}) == 4


def test_targets_follow_inputs_and_all_of_them_count() -> None:
    batch = ROWS.at(0, rows=6, seed=0)
    assert torch.equal(batch.inputs["ids"][:, 1:], batch.targets[:, :-1])
    assert batch.targets.shape == (6, LENGTH)
    assert not (batch.targets == IGNORED).any()
    assert batch.weights is not None
    assert torch.equal(batch.weights.unique(), torch.tensor([MADE_WEIGHT, 1.0, ANSWER_WEIGHT]))


def test_every_answer_stands_in_the_text_before_it_and_in_no_other_place_of_the_row() -> None:
    """The words of every answer are in lines that are hidden in the text; the text itself does not have them."""
    for step in range(30):
        batch = ROWS.at(step, rows=1, seed=1)
        assert batch.weights is not None
        weights = torch.cat([torch.ones(1), batch.weights[0]])
        text = whole(batch)[0]
        answers = "".join(chr(i) if w == ANSWER_WEIGHT else "\0" for i, w in zip(text, weights, strict=True))
        end = int((weights == 1.0).nonzero()[-1]) + 1
        stated = read(text[:end][weights[:end] == torch.tensor(MADE_WEIGHT)])
        words = re.findall(r"[\w-]+", answers)
        assert words
        assert answers[-1] != "\0", "the last token is one of an answer"
        assert all(word in stated for word in words)
        assert "~" not in stated
        assert not any(word in LINES for word in words if len(word) > 4)


def test_what_counts_as_text_is_one_piece_of_it() -> None:
    starts = set()
    for step in range(20):
        batch = ROWS.at(step, rows=1, seed=2)
        assert batch.weights is not None
        text = read(batch.targets[0][batch.weights[0] == 1.0])
        # The first token of a row is no target.
        assert text in LINES
        starts.add(text[:9])
    assert len(starts) > 10


def test_facts_stand_in_lines_of_their_own_between_those_of_the_text() -> None:
    for step in range(20):
        batch = ROWS.at(step, rows=1, seed=3)
        ids, made = batch.targets[0], batch.weights[0] == MADE_WEIGHT
        edges = (made[1:] != made[:-1]).nonzero()[:, 0]
        question = int((batch.weights[0] == 1.0).nonzero()[-1])
        assert all(chr(ids[edge]) == "\n" for edge in edges if edge < question)


@pytest.mark.parametrize("text", ["no end at all, " * 200, "One. Two. Three! " * 200])
def test_a_text_without_lines_has_lines_for_the_facts(text: str) -> None:
    rows = RetrievalRows(ids_of(text.replace(" ", "~")), LENGTH, Letters())
    for step in range(20):
        batch = rows.at(step, rows=1, seed=0)
        stated = batch.weights[0] == MADE_WEIGHT
        ids = batch.targets[0]
        first = [p for p in range(1, LENGTH) if stated[p] and batch.weights[0, p - 1] == 1.0]
        assert all(ids[p] == ord("\n") for p in first)
        if "." in text:
            ends = [chr(ids[p - 1]) for p in first[:-1]]
            assert set(ends) <= set(".!~")


def test_rows_are_of_many_kinds() -> None:
    """One fact, several, long lists; one question or more; many forms, keys and values."""
    shares, forms = [], set()
    for step in range(60):
        batch = ROWS.at(step, rows=1, seed=4)
        shares.append(float((batch.weights[0] == MADE_WEIGHT).float().mean()))
        forms.add(re.sub(r"\w+", "x", read(batch.targets[0][-40:])))
    assert min(shares) < 0.15
    assert max(shares) > 0.5
    assert len(forms) > 20


def test_facts_of_a_row_are_about_different_things() -> None:
    for seed in range(40):
        facts = list(islice(made_facts(np.random.default_rng(seed)), 300))
        assert len({fact.question for fact in facts}) == 300
        for fact in facts[:20]:
            values = fact.answer.strip(' ."|}').split(", ")
            assert len(values) == len(fact.lines)
            assert all(value in line for value, line in zip(values, fact.lines, strict=True))


def test_a_length_without_room_is_refused() -> None:
    with pytest.raises(InputError, match="length 100 has no room"):
        RetrievalRows(ids_of(LINES), 100, Letters())
    with pytest.raises(InputError, match="length 99999 needs"):
        RetrievalRows(ids_of(LINES), 99_999, Letters())
    with pytest.raises(InputError, match="answer_weight"):
        RetrievalRows(ids_of(LINES), LENGTH, Letters(), answer_weight=0.0)


# --- mixed ---------------------------------------------------------------------------------------------------------

PLAIN = Windows(ids_of(LINES), LENGTH)


@pytest.mark.parametrize(("share", "rows"), [(0.3, 4), (0.3, 1), (0.5, 3), (0.0, 2), (1.0, 2)])
def test_the_share_is_met_over_the_steps_and_batches_keep_their_size(share: float, rows: int) -> None:
    mixed = Mixed(PLAIN, Windows(torch.zeros(LENGTH + 1, dtype=torch.int64), LENGTH), share)
    counts = []
    for step in range(20):
        batch = mixed.at(step, rows, seed=0)
        assert batch.targets.shape == (rows, LENGTH)
        counts.append(int((batch.targets == 0).all(1).sum()))
    assert sum(counts) == int(20 * share * rows)
    assert max(counts) - min(counts) <= 1


def test_ordinary_rows_of_a_mix_count_fully() -> None:
    batch = Mixed(PLAIN, ROWS, 0.5).at(0, 4, seed=0)
    assert torch.equal(batch.weights[:2], torch.ones(2, LENGTH))
    assert torch.equal(batch.targets[:2], PLAIN.at(0, 2, seed=0).targets)
    assert torch.equal(batch.targets[2:], ROWS.at(0, 2, seed=0).targets)
    assert torch.equal(batch.weights[2:], ROWS.at(0, 2, seed=0).weights)
    assert Mixed(PLAIN, ROWS, 0.0).at(0, 4, seed=0).weights is None


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="share must be from 0 to 1"):
        Mixed(PLAIN, ROWS, share)
