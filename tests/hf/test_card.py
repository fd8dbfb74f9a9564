"""The model card: what the hub reads of it, what it says, and that odd words do not break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import contentrope.hf as chf
from contentrope.hf.card import card, table
from tests.hf.models import attached

FACTS = chf.Facts(
    base="somebody/small-model",
    training={"text": "my | text", "steps": 1200},
    measured=[{"window": "512", "before": "4.00", "after": "3.00"}],
    scored="Perplexity of held-out text.",
    summary="Better at\n512 tokens.",
)


def front_of(text: str) -> dict[str, Any]:
    _, front, _ = text.split("---\n", 2)
    return yaml.safe_load(front)


def test_what_the_hub_reads_is_yaml() -> None:
    found = front_of(card({"window": 9}, "mine", "somebody/small-model"))
    assert found["base_model"] == "somebody/small-model"
    assert found["library_name"] == "contentrope"
    assert found["pipeline_tag"] == "text-generation"
    assert "contentrope" in found["tags"]


@pytest.mark.parametrize("base", [None, "/some/folder", "./here", "a: b\n--- #", "tests"])
def test_a_base_that_is_no_name_on_the_hub_is_not_named_as_one(base: str | None) -> None:
    """A folder is none, also where it is called like a model."""
    text = card({}, "mine", base)
    assert "base_model" not in front_of(text)
    assert base is None or " ".join(base.split()) in text


def test_the_card_in_the_folder_says_what_was_done(tmp_path: Path) -> None:
    model = attached("llama", window=9, competition=1.0)
    chf.save_pretrained(model, tmp_path / "with", facts=FACTS)
    chf.save_pretrained(model, tmp_path / "without")
    text, plain = ((tmp_path / name / "README.md").read_text() for name in ("with", "without"))
    for said in ("somebody/small-model", "| near window, in tokens | `9` |", "| longest unit, in tokens | `7` |"):
        assert said in text
    for said in ("my \\| text", "1,200", "| 512 | 4.00 | 3.00 |", "Better at 512 tokens.", "Perplexity of held-out"):
        assert said in text
        assert said not in plain
    assert "from_pretrained" in plain
    assert front_of(text)["base_model"] == "somebody/small-model"


def test_a_table_keeps_its_columns_whatever_is_in_it() -> None:
    lines = table([{"a": "x|y\nz", "b": 1}]).splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {3}
    assert table([]) == ""
