"""Settings: what is derived from them, what is refused, and how they travel as plain data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contentrope.config import ModelConfig, RotaryConfig, differences
from contentrope.errors import InputError


def config(**settings: Any) -> ModelConfig:
    return ModelConfig(**{"vocab_size": 11, "dim": 24, "layers": 3, "heads": 4, **settings})


def test_what_is_derived() -> None:
    plain = config()
    assert (plain.head_dim, plain.key_heads, plain.group, plain.pair_count) == (6, 4, 1, 3)
    grouped = config(kv_heads=2, rotary=RotaryConfig(fraction=2 / 3))
    assert (grouped.head_dim, grouped.key_heads, grouped.group, grouped.pair_count) == (6, 2, 2, 2)


@pytest.mark.parametrize("name", ["vocab_size", "dim", "layers", "heads", "max_unit_length", "kv_heads"])
@pytest.mark.parametrize("value", [0, -4, 2.0, "4", True])
def test_sizes_are_positive_integers(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} must be a positive integer, got {value!r}"):
        config(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 5}, "dim 24 is not divisible by heads 5"),
        ({"kv_heads": 3}, "heads 4 is not divisible by kv_heads 3"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must be in \[0, 1\), got -0.1"),
        ({"dropout": float("nan")}, r"dropout must be in \[0, 1\), got nan"),
        ({"attention_dropout": 1.0}, r"attention_dropout must be in \[0, 1\), got 1.0"),
        ({"terminators": (3, 11)}, r"terminators \[11\] lie outside the vocabulary of 11 \(ids 0..10\)"),
        ({"terminators": (-1, 2)}, r"terminators \[-1\] lie outside the vocabulary of 11"),
        ({"reader": (12,)}, r"reader \[12\] lie outside the vocabulary of 11"),
        ({"terminators": (1.5,)}, r"terminators must be token ids, .* got \(1.5,\)"),
        ({"terminators": "12"}, "terminators must be token ids, .* got '12'"),
        ({"terminators": 0}, r"terminators must be token ids, e.g. \(0,\); got 0"),
        ({"dim": 12}, "head_dim 3 x fraction 1.0 gives 3 rotating dimensions; an even number of at least 2"),
        ({"rotary": RotaryConfig(fraction=0.2)}, "head_dim 6 x fraction 0.2 gives 1 rotating dimensions"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": 1.0}, "rotary base must be a finite number above 1, got 1.0"),
        ({"base": float("nan")}, "rotary base must be a finite number above 1, got nan"),
        ({"pairs": "quarter"}, "pairs must be one of half, interleaved; got 'quarter'"),
        ({"frequencies": "per_layer"}, "frequencies must be one of per_head, model_wide; got 'per_layer'"),
        ({"fraction": 0.0}, r"rotary fraction must be in \(0, 1\], got 0.0"),
        ({"fraction": 1.5}, r"rotary fraction must be in \(0, 1\], got 1.5"),
    ],
)
def test_rotary_settings_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RotaryConfig(**settings)


def test_settings_cannot_be_changed_afterwards() -> None:
    options = {"competition": 1.0}
    made = config(options=options)
    options["competition"] = 2.0
    assert made.options == {"competition": 1.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.dim = 48  # type: ignore[misc]


@given(
    kv_heads=st.sampled_from([None, 1, 2, 4]),
    scheme=st.sampled_from(["content", "alibi", "yarn"]),
    options=st.dictionaries(
        st.sampled_from(["competition", "slopes", "factor"]),
        st.one_of(
            st.floats(0, 9),
            st.integers(0, 9),
            st.booleans(),
            st.lists(st.floats(0, 9), max_size=4),
            st.lists(st.floats(0, 9), max_size=4).map(tuple),
        ),
    ),
    terminators=st.lists(st.integers(0, 10), max_size=3).map(tuple),
    dropout=st.floats(0, 0.99),
    attention_dropout=st.floats(0, 0.99),
    pairs=st.sampled_from(["half", "interleaved"]),
    base=st.floats(1.5, 1e7),
)
def test_settings_survive_a_trip_through_json(**settings: Any) -> None:
    rotary = RotaryConfig(pairs=settings.pop("pairs"), base=settings.pop("base"))
    made = config(rotary=rotary, **settings)
    read_back = ModelConfig.from_dict(json.loads(json.dumps(made.to_dict())))
    assert read_back == made
    assert read_back.to_dict() == made.to_dict()


def test_missing_settings_take_their_defaults_and_unknown_ones_are_named() -> None:
    needed = {"vocab_size": 11, "dim": 24, "layers": 3, "heads": 4}
    assert ModelConfig.from_dict(needed) == config()
    with pytest.raises(InputError, match=r"unknown model setting headz, width; known are .*heads, kv_heads"):
        ModelConfig.from_dict({**needed, "headz": 4, "width": 2})
    with pytest.raises(InputError, match="unknown rotary setting theta; known are base, fraction, frequencies, pairs"):
        ModelConfig.from_dict({**needed, "rotary": {"theta": 1e4}})


def test_differences_name_every_setting_with_both_values() -> None:
    ours = config(options={"competition": 1.0}, terminators=(0, 3)).to_dict()
    theirs = config(layers=5, options={"competition": 0.5}, rotary=RotaryConfig(base=50.0)).to_dict()
    assert differences(ours, theirs) == [
        "layers: 3 here, 5 in the file",
        "options.competition: 1.0 here, 0.5 in the file",
        "rotary.base: 10000.0 here, 50.0 in the file",
        "terminators: [0, 3] here, [] in the file",
    ]


def test_differences_see_what_only_one_side_has() -> None:
    assert differences({"a": 1}, {}) == ["a: 1 here, None in the file"]
    assert differences({}, {"options": {"x": 2}}) == ["options: None here, {'x': 2} in the file"]


def test_tuples_and_lists_are_no_difference() -> None:
    assert differences({"slopes": (0.5, 0.25)}, {"slopes": [0.5, 0.25]}) == []
    assert differences(config().to_dict(), json.loads(json.dumps(config().to_dict()))) == []
