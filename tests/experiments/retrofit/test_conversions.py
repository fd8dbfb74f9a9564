"""The names of what is compared, and what they do to a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import contentrope.hf as chf
from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.hf.finetune import CausalLM
from contentrope.hf.plain import load_model
from contentrope.schemes.ntk import NtkAware
from contentrope.schemes.pi import PositionInterpolation
from contentrope.units import Segmenter, Terminators
from experiments.conversions import Addresses
from experiments.converted import long_unit, rescaled, save_plain, with_addresses
from experiments.retrofit.config import PRESETS, RetrofitConfig
from experiments.retrofit.models import add_dropout, converted
from experiments.retrofit.run import Retrofit
from tests.experiments.retrofit.tiny import LINES, TINY, TOKENIZER, lively_reader, saved_original


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("telepathy", "no conversion 'telepathy'; there are untouched, content, rope, pi, ntk, yarn"),
        ("alibi", "no conversion 'alibi'"),
        ("content:positions=nowhere", "positions must be one of gated, local; got 'nowhere'"),
        ("content:positions=1", "option 'positions' of scheme 'content' must be a word, e.g. 'local'; got 1"),
        ("content:start=ahead", "start must be one of zero, back; got 'ahead'"),
        ("content:start=back,positions=gated", "start=back is for positions=local"),
        ("content:train=some", "train must be one of all, lora, addresses, nothing; got 'some'"),
        ("content:rank=0", "rank must be at least 1, got 0"),
        ("content:factor=2", "has no option factor"),
        ("pi:factor=0.5", "factor must be at least 1, got 0.5"),
        ("rope:factor=2", "has no option factor"),
        ("untouched:factor=2", "no conversion 'untouched:factor=2'"),
    ],
)
def test_what_is_no_conversion_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        RetrofitConfig(variants=(name,))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 0}, "seeds must be an integer of at least 1"),
        ({"times": ()}, "times must name one or more"),
        ({"length": 0}, "length and times must be at least 1"),
        ({"gate_share": 0.0}, "gate_share must be above 0"),
    ],
)
def test_settings_are_checked(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_conversion_takes_a_tenth_of_the_training_at_most(preset: RetrofitConfig) -> None:
    assert 10 * preset.training.steps <= preset.pretraining.steps
    assert preset.training.batch_size == preset.pretraining.batch_size
    assert max(preset.lengths) == 16 * preset.length
    schemes = {name.partition(":")[0] for name in preset.variants}
    assert schemes == {"untouched", "rope", "content", "pi", "ntk", "yarn"}


def converted_tiny(variant: str, folder: Path, **settings: Any) -> CausalLM:
    config = replace(TINY, **settings)
    return converted(config, variant, str(saved_original(folder)), TOKENIZER, LINES[0], "cpu")


def frequencies(variant: str, folder: Path) -> torch.Tensor:
    reader = converted_tiny(variant, folder)
    return reader.model.base_model.rotary_emb.inv_freq


def test_rescaled_frequencies_are_those_of_our_own_baselines(tmp_path: Path) -> None:
    settings = {"vocab_size": 9, "dim": 16, "layers": 1, "heads": 2, "terminators": (0,)}
    for scheme, kind in (("pi", PositionInterpolation), ("ntk", NtkAware)):
        ours = kind(ModelConfig(**settings, scheme=scheme, options={"factor": 8})).rotations.inverse_frequency
        torch.testing.assert_close(frequencies(f"{scheme}:factor=8", tmp_path), ours[0].float())
    plain, yarn = frequencies("rope", tmp_path), frequencies("yarn:factor=8", tmp_path)
    torch.testing.assert_close(yarn[-1], plain[-1] / 8)
    assert yarn[0] > plain[0] / 8


def test_rotary_settings_by_layer_are_not_rescaled() -> None:
    config = SimpleNamespace(model_type="gemma3", rope_parameters={"full_attention": {"rope_theta": 1e6}})
    with pytest.raises(InputError, match="gemma3 has no rotary settings that hold for all its layers, so pi cannot"):
        rescaled("pi", config, 16)
    assert rescaled("content", config, 16) is None


@torch.no_grad()
def test_units_that_lie_back_are_read_where_the_original_has_them() -> None:
    """A unit as long as the distance, before the open one: local positions and this address are global positions."""
    ids = torch.tensor([TOKENIZER("abcdefg\nfab cd")["input_ids"]])
    original = lively_reader()(ids)
    options = Addresses(competition=0)
    reader = with_addresses(lively_reader().model, TOKENIZER, options, ids[0], units="line", max_length=16).eval()
    assert not torch.allclose(reader(ids)[:, 8:], original[:, 8:], atol=1e-2)
    chf.lie_back(reader.model, 8)
    torch.testing.assert_close(reader(ids), original, atol=1e-4, rtol=1e-4)
    chf.lie_back(reader.model, 9)
    assert not torch.allclose(reader(ids)[:, 8:], original[:, 8:], atol=1e-2)


def test_a_long_unit_is_measured_in_the_text() -> None:
    rule = Segmenter(Terminators(TOKENIZER("\n")["input_ids"]), max_length=12)
    lines = ["ab\n"] * 200 + ["abcdefg\n"] * 10 + ["a" * 11 + "\n"]
    assert long_unit(rule, torch.tensor(TOKENIZER("".join(lines))["input_ids"])) == 8
    assert long_unit(rule, torch.tensor(TOKENIZER("abc")["input_ids"])) == 12


def test_addresses_begin_at_zero_unless_they_lie_back(tmp_path: Path) -> None:
    for variant, zero in (("content:start=back", False), ("content", True), ("content:positions=gated", True)):
        reader = converted_tiny(variant, tmp_path)
        assert reader.model.contentrope.are_zero() == zero


@pytest.mark.parametrize(("train", "few"), [("all", False), ("lora", True), ("addresses", True)])
def test_only_what_was_asked_for_is_trained(train: str, few: bool, tmp_path: Path) -> None:
    variant = f"content:train={train},rank=1"
    reader = converted_tiny(variant, tmp_path)
    trained = {name for name, weight in reader.named_parameters() if weight.requires_grad}
    assert any("contentrope" in name and name.endswith("project.weight") for name in trained)
    assert any("lora_A" in name for name in trained) == (train == "lora")
    assert any(name.endswith("embed_tokens.weight") for name in trained) == (not few)
    assert all("contentrope" in name for name in trained) == (train == "addresses")
    assert {reader.rate_factor(name) for name in trained} == ({10.0} if few else {1.0, 10.0}), "new parts learn faster"
    assert reader.rate_factor("model.model.embed_tokens.weight") == 1.0


def test_records_end_at_their_marker(tmp_path: Path) -> None:
    reader = converted_tiny("content", tmp_path, units="record", marker="cd")
    assert reader.segmenter is not None
    units, _ = reader.segmenter.advance(
        reader.segmenter.initial(1), torch.tensor([TOKENIZER("abcdef cdh")["input_ids"]])
    )
    assert units.unit.tolist() == [[0] * 4 + [1] * 5 + [2]]
    with pytest.raises(InputError, match="needs the text that ends a record"):
        Retrofit(replace(TINY, units="record")).check()


@torch.no_grad()
def test_dropout_is_for_training_and_not_for_checkpoints(tmp_path: Path) -> None:
    reader = lively_reader()
    plain = reader(LINES)
    add_dropout(reader.model, 0.5)
    assert torch.equal(reader(LINES), plain)
    reader.train()
    assert not torch.allclose(reader(LINES), plain, atol=1e-2)
    save_plain(reader.model, TOKENIZER, tmp_path / "saved")
    saved = load_model(str(tmp_path / "saved")).train()
    torch.testing.assert_close(saved(LINES).logits, plain)
