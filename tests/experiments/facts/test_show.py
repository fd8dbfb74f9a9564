"""``python -m experiments.facts.show``: the counts of the paper, and examples with what is scored in brackets."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.facts.show import main


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTENTROPE_CACHE", str(tmp_path / "own-cache"))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def example_lines(text: str) -> list[str]:
    lines = text.splitlines()
    return [after for before, after in pairwise(lines) if before.startswith("--- example")]


def test_counts_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys)
    for count in ("3,000", "74,975", "59,960", "134,935", "6,116,520"):
        assert count in shown
    assert len(example_lines(shown)) == 3
    for line in example_lines(shown):
        facts, text = line.split("| ")
        given, *targets = sorted(re.findall(r"> ([a-z]+)", facts), key=lambda name: f"[{name}]" in text)
        assert re.search(rf"\b{given}\b", text)
        assert sorted(re.findall(r"\[([a-z]+)\]", text)) == sorted(targets)
        assert targets


def test_options_reach_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--examples 5 --names test --kind chain2 --condition same-relation --distractors 2 --layout bar --seed 4"
    lines = example_lines(printed(capsys, *words.split()))
    assert len(lines) == 5
    for line in lines:
        assert line.count("|") == 3
        assert ";" not in line
        assert line.count("[") == 1
        assert len(set(re.findall(r"<[a-z-]+>", line))) == 2
    assert example_lines(printed(capsys, *words.split())) == lines
    assert example_lines(printed(capsys, *words.split()[:-1], "5")) != lines


def test_a_range_of_distractors(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--examples", "30", "--condition", "same-entities", "--distractors", "0", "2"]
    assert {line.count(";") for line in example_lines(printed(capsys, *words))} == {1, 2, 3}


def test_counts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "--examples", "0", "--test-names", "1000")
    assert "6,116,520" in shown
    assert "1,000" in shown
    assert "example" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--examples", "-1"], "examples must be from 0 to 10000, got -1"),
        (["--seed", "-1"], "seed must be 0 or more"),
        (["--distractors", "3"], "condition 'single' has no distractors, got 3"),
        (["--condition", "mixed", "--distractors", "1", "2", "3"], "--distractors takes one number, or .* got 1 2 3"),
        (["--condition", "mixed", "--distractors"], "--distractors takes one number, or .* got nothing"),
        (["--condition", "same-relation", "--names", "test", "--distractors", "99"], "at most 93 .* got 99"),
        (["--test-names", "9" * 30], "there are 6548 names"),
        (["--seed", "9" * 30], "seed must be 0 or more and less than"),
        (["--examples", "many"], "invalid int value: 'many'"),
        (["--kind", "chain4"], "kind must be one of 'any', 'chain2', 'chain3'; got 'chain4'"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
    ],
)
def test_what_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert re.match(f"error: .*{message}", said.err)
