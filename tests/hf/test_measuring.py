"""What is measured of held-out text: lengths below and above the limit, the same tokens, and a sentence about it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config

from contentrope.errors import InputError
from contentrope.evaluation.perplexity import perplexity
from contentrope.hf import measuring
from contentrope.hf.finetune import CausalLM
from tests.hf.models import attached, random_ids, rope, tiny

YARN: dict[str, Any] = rope("yarn", factor=4.0, original_max_position_embeddings=64)


def test_the_limit_is_the_length_before_frequencies_were_rescaled() -> None:
    assert measuring.reading_limit(LlamaConfig(max_position_embeddings=256)) == 256
    assert measuring.reading_limit(LlamaConfig(max_position_embeddings=256, **YARN)) == 64
    long = {"original_max_position_embeddings": 32, "max_position_embeddings": 128}
    assert measuring.reading_limit(Phi3Config(**long)) == 32


@pytest.mark.parametrize(("limit", "length"), [(8192, 512), (2048, 4096), (16, 16), (131_072, 512)])
def test_lengths_are_below_and_above_the_limit_and_score_the_same_tokens(limit: int, length: int) -> None:
    lengths = measuring.lengths_for(limit, length, 10**7)
    assert lengths[0] <= min(limit, length)
    assert lengths[-1] >= min(2 * limit, measuring.MOST_SCORED // 2)
    assert all(lengths[-1] % n == 0 for n in lengths)
    assert measuring.lengths_for(limit, length, length + 1)[-1] <= length
    scored = measuring.tokens_to_score(lengths, 10**7, 10**9)
    assert scored % lengths[-1] == 0
    assert scored <= measuring.MOST_SCORED


def test_measuring_costs_a_share_of_the_training() -> None:
    lengths = [512, 1024, 2048]
    cheap, dear = (measuring.tokens_to_score(lengths, 10**7, tokens) for tokens in (10**5, 5 * 10**5))
    assert cheap < dear
    assert 2 * len(lengths) * dear <= measuring.COST * 3 * 5 * 10**5


def test_lengths_of_ones_own_must_score_the_same_tokens() -> None:
    assert measuring.require_lengths((64, 16, 16), 100) == [16, 64]
    for lengths, message in (((48, 64), "48"), ((0, 4), "at least 1"), ((128,), "does not fit"), ((), "one or more")):
        with pytest.raises(InputError, match=message):
            measuring.require_lengths(lengths, 100)


@pytest.mark.parametrize("window", [None, 0, 9])
def test_windows_longer_than_a_reading_are_read_alone(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama") if window is None else attached("llama", window=window, competition=1.0)
    reader, ids, told = CausalLM(model), random_ids(1, 130)[0], []
    expected = {length: perplexity(reader, ids, length, max_tokens=128) for length in (16, 32, 128)}
    monkeypatch.setattr(measuring, "READ_AT_ONCE", 32)
    model.train()
    found = measuring.perplexities(reader, ids, [16, 32, 128], 128, lambda *read: told.append(read))
    assert model.training
    assert found == pytest.approx(expected, rel=1e-9)
    assert told[-1] == (3 * 128, 3 * 128)
    assert [read for read, _ in told] == sorted({read for read, _ in told})


def test_the_default_window_is_shorter_than_a_row_and_within_the_limit() -> None:
    for limit, length, longest, expected in ((8192, 4096, 256, 2048), (8192, 512, 256, 256), (64, 512, 256, 0)):
        config = LlamaConfig(max_position_embeddings=limit)
        window = measuring.near_window(config, length, longest)
        assert window == expected
        assert window < length
    dynamic = LlamaConfig(max_position_embeddings=8192, **rope("dynamic", factor=2.0))
    assert measuring.near_window(dynamic, 4096, 256) == 0


INF = math.inf
CASES = {
    "better everywhere": ([4, 4, 4], [3, 3, 3], {"better": [1, 2, 3]}),
    "nowhere": ([4, 4, 4], [5, 4.1, 5], {"worse": [1, 2, 3]}),
    "from some length on": ([4, 4, 9], [4.1, 3, 3], {"better": [2, 3], "worse": [1]}),
    "here and there": ([4, 4, 4], [3, 5, 3], {"better": [1, 3], "worse": [2]}),
    "as before": ([4, 4, 4], [4, 4.0001, 4], {"as before": [1, 2, 3]}),
    "no longer finite": ([4, 4, 4], [4, INF, math.nan], {"as before": [1], "not finite": [2, 3]}),
    "finite now": ([4, INF, INF], [4, 5, INF], {"as before": [1], "better": [2], "not finite": [3]}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_says_what_the_numbers_say(case: str) -> None:
    before, after, expected = CASES[case]
    lengths = (512, 1024, 2048)
    said = measuring.verdict(dict(zip(lengths, before, strict=True)), dict(zip(lengths, after, strict=True)))
    clauses = said.split("; ")
    for kind in ("better", "worse", "as before", "not finite"):
        own = [clause for clause in clauses if clause.startswith(kind)]
        assert bool(own) == (kind in expected), said
        assert sum(clause.count("tokens") for clause in own) >= bool(own)
    assert "nan" not in said
    assert "inf" not in said.replace("finite", "")


def test_a_better_length_alone_is_not_a_stretch() -> None:
    """ "From 2,048 on" would say more than was measured."""
    said = measuring.verdict({512: 4.0, 2048: 4.0}, {512: 4.4, 2048: 3.0})
    assert "on" not in said.replace("tokens", "").split()
    assert "10.0%" in said
    assert "25.0%" in said


def test_a_window_of_nothing_is_no_perplexity() -> None:
    with pytest.raises(InputError):
        measuring.perplexities(CausalLM(tiny("llama")), torch.zeros(5, dtype=torch.int64), [16], 16)
