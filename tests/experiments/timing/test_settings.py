"""Rows, settings, presets, and the tokens that are drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from contentrope.errors import InputError
from contentrope.model import Transformer
from experiments.timing.config import PRESETS, SIZES, Row, TimingConfig, parse_row
from experiments.timing.run import Timing, random_batches, random_tokens
from tests.experiments.timing.tiny import TINY

# --- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "sizes", "batch", "parameters"),
    [
        ("0.8M", (128, 4, 4), 8, 810_049),
        ("85M", (768, 12, 12), 4, 85_155_905),
        ("302M", (1024, 24, 16), 2, 302_444_609),
        ("680M", (1536, 24, 16), 1, 680_159_297),
    ],
)
def test_the_paper_s_sizes_have_the_paper_s_parameters(
    size: str, sizes: tuple[int, ...], batch: int, parameters: int
) -> None:
    row = parse_row(size)
    assert (row.model.dim, row.model.layers, row.model.heads) == sizes
    assert (row.batch, row.length) == (batch, 1024)
    with torch.device("meta"):
        model = Transformer(TimingConfig().model_of("rope", row))
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == parameters
    assert f"{counted / 1e6:.{1 if counted < 1e6 else 0}f}M" == size


def test_longer_sequences_are_fewer_and_shorter_ones_not_more() -> None:
    assert [parse_row(f"85M at {length}").batch for length in (128, 1024, 2048, 4096, 8192)] == [4, 4, 2, 1, 1]
    assert all(Row(size, 32_768).batch == 1 for size in SIZES)


@pytest.mark.parametrize("name", ["85M", "85M at 8,192", "0.8M at 256"])
def test_a_row_is_named_as_it_is_read(name: str) -> None:
    assert parse_row(name).name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("7B", "unknown row '7B'; write a size or a size and a length"),
        ("", "unknown row ''"),
        ("85M at", "sizes are 0.8M, 85M, 302M, 680M, 3M"),
        ("85M at long", "unknown row"),
        ("85M at 8,192 tokens", "unknown row"),
        ("85M at 1", "has sequences of 1 tokens; 2 to"),
        ("85M at 99999999999", "has sequences of 99999999999 tokens"),
    ],
)
def test_a_row_that_is_none_is_refused_with_those_there_are(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_row(name)


# --- settings ------------------------------------------------------------------------------------------------------


def test_one_row_has_one_name_however_it_is_written() -> None:
    config = replace(TINY, variants=["85M at 8192", "85M at 1,024"])
    assert config.variants == ("85M at 8,192", "85M")
    with pytest.raises(InputError, match="different"):
        replace(TINY, variants=("85M", "85M at 1024"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": ()}, "variants must name one or more"),
        ({"variants": ("7B",)}, "unknown row '7B'"),
        ({"schemes": ()}, "schemes must name one or more"),
        ({"schemes": ("content", "content")}, "different"),
        ({"schemes": ("rupe",)}, "unknown scheme 'rupe'"),
        ({"schemes": ("content", "rope")}, "rope is what schemes are compared with .* leave it out"),
        ({"accelerations": ("auto",)}, "unknown acceleration 'auto'; choose of none, compile, graphs"),
        ({"accelerations": ()}, "accelerations must name"),
        ({"backend": "magic"}, "backend must be one of auto, reference, tiled, flex, fused; got 'magic'"),
        ({"rotary": "fast"}, "rotary must be one of compiled, eager"),
        ({"precision": "int4"}, "precision must be one of"),
        ({"timed_steps": 0}, "timed_steps must be an integer of at least 1, got 0"),
        ({"warmup_steps": 0}, "warmup_steps must be"),
        ({"unit_length": 2.5}, "unit_length must be"),
        ({"seeds": True}, "seeds must be"),
        ({"vocabulary": 1}, "vocabulary must be an integer of at least 2"),
        ({"accelerations": ("none", "graphs"), "warmup_steps": 3}, "with graphs, warmup_steps must be above 3, got 3"),
    ],
)
def test_senseless_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **change)


def test_presets_can_be_run() -> None:
    for preset in PRESETS.values():
        Timing(preset).check()
    paper = PRESETS["paper"]
    assert {"0.8M", "85M", "302M", "680M", "85M at 8,192", "85M at 32,768"} <= set(paper.variants)
    assert (paper.timed_steps, paper.precision, paper.rotary) == (10, "bf16", "compiled")
    assert paper.accelerations == ("none", "graphs")
    assert PRESETS["quick"].accelerations == ("none",)


def test_a_misspelt_option_stops_before_anything_is_timed() -> None:
    with pytest.raises(InputError, match="kompetition"):
        Timing(replace(TINY, schemes=("content:kompetition=1",))).check()


def test_only_schemes_with_addresses_have_a_choice_of_backend() -> None:
    config = replace(TINY, backend="reference", schemes=("content:competition=1", "alibi"))
    assert [config.backend_of(scheme) for scheme in config.contenders] == ["auto", "reference", "auto"]


# --- tokens --------------------------------------------------------------------------------------------------------


def test_every_step_has_a_batch_of_its_own_and_every_contender_the_same() -> None:
    row = parse_row("0.8M at 16")
    batches, again = (random_batches(TINY, row, 0, "cpu") for _ in range(2))
    assert len(batches) == 5
    assert all(torch.equal(a.targets, b.targets) for a, b in zip(batches, again, strict=True))
    assert not torch.equal(batches[0].targets, batches[1].targets)
    assert not torch.equal(batches[0].targets, random_batches(TINY, row, 1, "cpu")[0].targets)
    for batch in batches:
        ids = batch.inputs["ids"]
        assert ids.shape == batch.targets.shape == (8, 16)
        assert torch.equal(ids[:, 1:], batch.targets[:, :-1])
        assert ids.is_contiguous()
        assert batch.targets.is_contiguous()


def test_units_have_the_length_asked_for_in_the_mean() -> None:
    config = TimingConfig()
    tokens = random_tokens(64, 4096, config, torch.Generator().manual_seed(0))
    assert tokens.numel() / (tokens == 0).sum().item() == pytest.approx(40, rel=0.05)
    assert tokens.unique().tolist() == list(range(65))
