"""Whatever value an option is given, from Python, a file or the command line: a model, or the project's error."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import contentrope as cr
from contentrope.training.sizes import ModelSize
from tests.schemes.test_options import OPTIONS

HUGE = 10**400
DEEP = "[" * 100_000
ODD: list[Any] = [
    None, True, False, "", "half", "1", float("nan"), float("inf"), -float("inf"), 0, -1, 1, 2, -0.5, 0.5, 1e-320,
    1e308, 10**4, 10**12, 2**63, HUGE, -HUGE, [], [[]], [[1]], [None], [True], ["a"], [float("nan")], [1, 2],
    [0, 99999], [0, HUGE], [-1, 1], [1.5, 0], [1, 2, 3], {}, {"a": 1}, "\0", "é\ud800",
]  # fmt: skip
WRITTEN = [
    "NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, DEEP, "[" + "1," * 2000 + "1]", "null", "true", '"', "{}", "[",
    "١", "1_000", "0x10", "a,b", "=", "[0,1", "\0",
]  # fmt: skip
ROTARY = [f.name for f in fields(cr.RotaryConfig)]
EVERYWHERE = [
    *((scheme, option) for scheme, options in OPTIONS.items() for option in options.split(", ") if option != "none"),
    *(("rope", option) for option in ROTARY),
]
values = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


def read(model: cr.Transformer) -> None:
    assert torch.isfinite(model(torch.tensor([[1, 2, 0, 3, 4, 0, 5]]))).all()


def made(scheme: str, option: str, value: Any) -> None:
    rotary = {option: value} if option in ROTARY else {}
    options = {} if rotary else {option: value}
    read(
        cr.Transformer(
            cr.ModelConfig(
                vocab_size=9, dim=24, layers=1, heads=2, terminators=(0,), scheme=scheme, options=options,
                rotary=cr.RotaryConfig(**rotary),
            )
        )
    )  # fmt: skip


@pytest.mark.parametrize(("scheme", "option"), EVERYWHERE)
def test_an_odd_value_makes_a_model_or_is_refused(scheme: str, option: str) -> None:
    for value in ODD:
        with suppress(cr.InputError):
            made(scheme, option, value)


@settings(deadline=None)
@given(st.sampled_from(EVERYWHERE), values)
def test_any_value_makes_a_model_or_is_refused(where: tuple[str, str], value: Any) -> None:
    with suppress(cr.InputError):
        made(*where, value)


@pytest.mark.parametrize(("scheme", "option"), EVERYWHERE)
def test_an_odd_variant_makes_a_model_or_is_refused(scheme: str, option: str) -> None:
    """As it is written on the command line."""
    for written in (*WRITTEN, *(json.dumps(value) for value in ODD if value not in (HUGE, -HUGE))):
        with suppress(cr.InputError):
            size = ModelSize(dim=24, layers=1, heads=2)
            read(cr.Transformer(size.model(f"{scheme}:{option}={written}", vocab_size=9, terminators=(0,))))


@settings(deadline=None)
@given(st.text())
@example("rope:base=big")
@example("rope:base=null")
@example("rope:base=Infinity")
@example("rope:fraction=half")
def test_any_text_names_a_variant_or_is_refused(name: str) -> None:
    with suppress(cr.InputError):
        ModelSize(dim=24, layers=1, heads=2).model(name, vocab_size=9)


@pytest.mark.parametrize("name", ["rope:base=big", "rope:base=null", "rope:base=Infinity", "rope:fraction=half"])
def test_what_is_refused_is_named(name: str) -> None:
    with pytest.raises(cr.InputError, match=name.partition(":")[2].partition("=")[0]):
        ModelSize().model(name, vocab_size=9)
