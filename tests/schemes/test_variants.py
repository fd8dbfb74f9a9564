"""Names of variants: which scheme, its options, and what belongs to the rotary positions below."""

import pytest

from contentrope.errors import InputError
from contentrope.schemes.variants import Variant, parse_variant


def test_a_scheme_alone() -> None:
    assert parse_variant("rope") == Variant("rope")
    assert parse_variant("rope:") == Variant("rope")


def test_option_values_keep_their_type() -> None:
    found = parse_variant("content:a=1,b=0.5,c=true,d=word,e=null,f=-2e-3")
    assert found.options == {"a": 1, "b": 0.5, "c": True, "d": "word", "e": None, "f": -0.002}
    assert isinstance(found.options["a"], int)


def test_lists_stand_inside_options() -> None:
    found = parse_variant("content:sizes=[1,2,3],names=[],last=x")
    assert found.options == {"sizes": [1, 2, 3], "names": [], "last": "x"}


def test_a_value_may_hold_signs() -> None:
    assert parse_variant("content:where=a=b:c").options == {"where": "a=b:c"}


def test_settings_of_rotary_positions_are_told_from_those_of_the_scheme() -> None:
    found = parse_variant("content:competition=1,frequencies=model_wide,base=500000,fraction=0.5,pairs=interleaved")
    assert found.options == {"competition": 1}
    assert found.rotary == {"frequencies": "model_wide", "base": 500000, "fraction": 0.5, "pairs": "interleaved"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("telepathy", "unknown scheme 'telepathy' in 'telepathy'.*rope"),
        ("", "unknown scheme ''"),
        ("content:competition", "'competition' in 'content:competition' is not option=value"),
        ("content:competition=", "is not option=value"),
        ("content:=1", "is not option=value"),
        ("content:competition=1,competition=2", "has the option competition twice"),
        ("rope:base=1,base=1", "has the option base twice"),
    ],
)
def test_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_variant(name)
