"""The options of every scheme, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope import schemes
from tests.support import VOCABULARY


def small_config(scheme: str, **options: Any) -> cr.ModelConfig:
    return cr.ModelConfig(vocab_size=VOCABULARY, dim=24, layers=1, heads=2, scheme=scheme, options=options)


OPTIONS = {
    "content": "competition, learn_competition, learn_sharpness, sharpness, window",
    "random": "competition, learn_competition, learn_sharpness, sharpness, window",
    "local": "competition, learn_competition, learn_sharpness, sharpness, window",
    "rope": "none",
    "alibi": "slopes",
    "nope": "none",
    "pi": "factor",
    "ntk": "factor",
    "yarn": "factor, fast_turns, slow_turns, train_length",
    "randomized": "range",
    "bipe": "none",
    "cope": "positions",
    "path": "none",
}


def test_every_scheme_is_covered_here() -> None:
    assert set(OPTIONS) == set(schemes.names())


@pytest.mark.parametrize("scheme", OPTIONS)
def test_an_unknown_option_is_refused_with_the_known_ones(scheme: str) -> None:
    with pytest.raises(cr.InputError, match=f"scheme '{scheme}' has no option colour; it takes: {OPTIONS[scheme]}$"):
        cr.Transformer(small_config(scheme, colour=1))


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("pi", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("ntk", {"factor": float("nan")}, "'factor' of scheme 'ntk' must be a finite number, .* got nan"),
        ("pi", {"factor": float("inf")}, "'factor' of scheme 'pi' must be a finite number, .* got inf"),
        ("pi", {"factor": "16"}, "'factor' of scheme 'pi' must be a finite number, e.g. 16.0; got '16'"),
        ("yarn", {"slow_turns": 40}, r"0 < slow_turns < fast_turns, got .*slow_turns=40, fast_turns=32.0"),
        ("yarn", {"train_length": 0}, "train_length >= 1 .*got .*train_length=0"),
        ("yarn", {"train_length": 99.5}, "'train_length' of scheme 'yarn' must be an integer, .* got 99.5"),
        ("randomized", {"range": 0}, "range must be positive, got 0"),
        ("cope", {"positions": 0}, "positions must be positive, got 0"),
        ("randomized", {"range": 10.5}, "'range' of scheme 'randomized' must be an integer, e.g. 16384; got 10.5"),
        ("alibi", {"slopes": [0.5]}, r"slopes \(0.5,\) are 1, heads 2: give one slope per head"),
        ("alibi", {"slopes": 0.5}, "'slopes' of scheme 'alibi' must be a list of finite numbers, .* got 0.5"),
        ("alibi", {"slopes": ["a", "b"]}, r"'slopes' .* must be a list of finite numbers, .* got \('a', 'b'\)"),
        ("content", {"competition": "learned"}, "'competition' .* must be a finite number, e.g. 0.0; got 'learned'"),
        ("local", {"competition": True}, "'competition' of scheme 'local' must be a finite number, .* got True"),
        ("local", {"sharpness": -0.5}, "sharpness must be at least 0, got -0.5"),
        ("content", {"sharpness": -0.5}, "sharpness must be at least 0, got -0.5"),
        ("random", {"learn_competition": "no"}, "'learn_competition' .* must be True or False, .* got 'no'"),
    ],
)
def test_a_wrong_value_is_refused(scheme: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(cr.InputError, match=message):
        cr.Transformer(small_config(scheme, **options))


def test_ntk_needs_two_pairs() -> None:
    one_pair = cr.ModelConfig(vocab_size=11, dim=4, layers=1, heads=2, scheme="ntk")
    with pytest.raises(cr.InputError, match="ntk needs at least 2 rotary pairs"):
        cr.Transformer(one_pair)


def test_whole_numbers_and_lists_are_taken_as_options() -> None:
    """What the command line and JSON give."""
    assert cr.Transformer(small_config("content", competition=1)).scheme.reader.competition.of(0) == 1.0
    alibi = cr.Transformer(small_config("alibi", slopes=[1, 0.5])).scheme
    assert alibi.slope_bits.view(torch.float64).tolist() == [1.0, 0.5]
