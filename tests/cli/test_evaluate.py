"""``contentrope evaluate``: the same numbers as the library, on the text asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from contentrope.cli import main
from contentrope.corpora import load_corpus
from contentrope.evaluation.perplexity import perplexity
from contentrope.results import read_json
from contentrope.text_model import load_text_model


def evaluate(model: Path, text: Path, *more: str) -> int:
    return main(["evaluate", str(model), "--text", str(text), "--device", "cpu", *more])


def test_numbers_are_printed_and_written(
    text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(trained, text, "--lengths", "16", "64", "--out", str(tmp_path / "found.json")) == 0
    printed = capsys.readouterr().out
    found = read_json(tmp_path / "found.json")
    corpus = load_corpus(text)
    model, _ = load_text_model(trained)
    scored = (len(corpus.held_out) - 1) // 64 * 64
    for length in (16, 64):
        expected = perplexity(model, corpus.held_out, length, max_tokens=scored)
        assert found["perplexity"][str(length)] == pytest.approx(expected, rel=1e-6)
        assert f"{expected:.2f}" in printed
    assert (found["scored"], found["unseen"]) == (scored, 0)
    assert found["text"]["sha256"] == corpus.description["sha256"]
    assert found["same_text_as_in_training"]
    assert found["settings"]["lengths"] == [16, 64]
    assert found["model"] == read_json(trained / "train.json")["model"]
    assert found["environment"]["device"] == "cpu"
    assert "0 unseen in training" in printed
    assert "note" not in printed


def test_the_use_of_distant_text(text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--lengths", "64", "--distant", "400", "--recent", "40", "--out", str(tmp_path / "found.json")]
    assert evaluate(trained, text, *more) == 0
    found, printed = read_json(tmp_path / "found.json"), capsys.readouterr().out
    assert found["by_position"]["edges"][-1] == 400
    assert (found["distant"]["length"], found["distant"]["near"]) == (400, 40)
    for word in ("256 to 399", "as written", "shuffled", "deleted", "replaced"):
        assert word in printed
    for value in (*found["by_position"]["perplexity"], *found["distant"]["perplexity"].values()):
        assert f"{value:.2f}" in printed


def test_the_whole_of_another_text_and_its_unseen_characters(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text("line öne of Üs\n" * 20)
    assert evaluate(trained, tmp_path / "other.txt", "--part", "whole", "--lengths", "64") == 0
    printed = capsys.readouterr().out
    assert "300 characters, 256 scored, 60 unseen in training" in printed  # ö, Ü and s
    assert "note" not in printed


def test_without_a_symbol_for_unknown_characters_they_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--dim", "8", "--layers", "1", "--heads", "2", "--length", "16", "--steps", "1", "--batch-size", "1"]
    words = ["train", "--text", "stdlib", "--characters", "2000", "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*words, *sizes]) == 0
    (tmp_path / "other.txt").write_text("é\n" * 50)
    assert evaluate(tmp_path / "run", tmp_path / "other.txt", "--part", "whole", "--lengths", "16") == 2
    assert "character 'é' at position 0 is not among the" in capsys.readouterr().err
    # Only the first 2,000 characters were taken in training, so only they are taken now.
    assert main(["evaluate", str(tmp_path / "run"), "--text", "stdlib", "--lengths", "16", "--device", "cpu"]) == 0
    assert "held-out part of stdlib: 200 characters, 192 scored" in capsys.readouterr().out
    more = ["--characters", "1000", "--lengths", "16", "--device", "cpu"]
    assert main(["evaluate", str(tmp_path / "run"), "--text", "stdlib", *more]) == 0
    assert "note: the model was trained on 1,800 of 2,000 characters of 'stdlib'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--lengths", "9000"], "windows of 9000 characters do not fit"),
        (["--lengths", "16", "--distant", "9000"], "windows of 9000 characters do not fit"),
        (["--lengths", "0"], "lengths must be one or more numbers of at least 1"),
        (["--distant", "400"], "recent 512 must be at least 1 and less than distant 400"),
        (["--distant", "600", "--part", "whole"], "--distant needs --part held-out"),
        (["--characters", "1000000"], "characters must be from 1 to"),
        (["--text", "stdlib", "--characters", "0"], "characters must be a positive integer, got 0"),
        (["--out", f"{__file__}/numbers.json"], "is not a folder"),
        (["--out", str(Path(__file__).parent)], "is a folder; name a file"),
        (["--text", "nowhere.txt"], "there is no file or folder 'nowhere.txt'"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_refused_settings_are_one_line(
    text: Path, trained: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert evaluate(trained, text, *more) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("name", ["corpus.json", "vocabulary.json"])
@pytest.mark.parametrize("content", ["3", "[]", "{}", '{"name": "lines.txt"}', "{"])
def test_a_damaged_file_beside_the_model_is_one_line(
    text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "model" / name).write_text(content)
    assert evaluate(tmp_path / "run", text, "--lengths", "16") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert name in error
    assert len(error.splitlines()) == 1


def test_a_folder_without_a_model_is_one_line(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(tmp_path, text) == 2
    assert capsys.readouterr().err == (
        f"error: no model.safetensors in {tmp_path}: not a saved model, or not finished{os.linesep}"
    )
