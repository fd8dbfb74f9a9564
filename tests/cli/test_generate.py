"""``contentrope generate``: the text of the library's ids, as it comes or several at once."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope.cli import main
from contentrope.text_model import load_text_model


def generate(model: Path, *more: str) -> int:
    return main(["generate", str(model), "--device", "cpu", *more])


def expected(folder: Path, prompt: str, count: int, rows: int = 1, **options: Any) -> list[str]:
    model, vocabulary = load_text_model(folder)
    ids = vocabulary.encode_tensor(prompt).expand(rows, -1)
    found = cr.generate(model, ids, count, generator=torch.Generator().manual_seed(0), **options)
    return [vocabulary.decode(row[valid]) for row, valid in zip(found.ids, found.valid, strict=True)]


def test_one_sample_is_the_prompt_and_what_follows(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--prompt", "line 3", "--tokens", "30", "--temperature", "0.7", "--top-k", "9", "--top-p", "0.9"]
    assert generate(trained, *more) == 0
    printed = capsys.readouterr().out
    assert printed == expected(trained, "line 3", 30, temperature=0.7, top_k=9, top_p=0.9)[0] + "\n"
    assert generate(trained, *more, "--seed", "1") == 0
    assert capsys.readouterr().out != printed


def test_characters_appear_as_they_are_drawn(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Terminal(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert generate(trained, "--prompt", "line", "--tokens", "5") == 0
    assert [len(text) for text in seen[:6]] == [4, 5, 6, 7, 8, 9]


def test_several_samples(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(trained, "--tokens", "60", "--samples", "3", "--stop-at-unit-end") == 0
    texts = expected(trained, "\n", 60, rows=3, stop_at_unit_end=True)
    assert capsys.readouterr().out == "".join(
        f"--- sample {number} of 3\n{text}\n" for number, text in enumerate(texts, start=1)
    )


def test_a_long_prompt_from_a_file(
    trained: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = text.read_text()[:1000]
    (tmp_path / "prompt.txt").write_text(prompt)
    assert generate(trained, "--prompt-file", str(tmp_path / "prompt.txt"), "--tokens", "10", "--temperature", "0") == 0
    assert capsys.readouterr().out == expected(trained, prompt, 10, temperature=0)[0] + "\n"


def test_unseen_characters_of_the_prompt_are_counted(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(trained, "--prompt", "line é", "--tokens", "2") == 0
    captured = capsys.readouterr()
    assert captured.err == "note: 1 characters of the prompt are unseen in training\n"
    assert captured.out.startswith("line é")


def test_ctrl_c_stops_without_advice(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_arguments: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("contentrope.cli.generate.generate_stream", interrupted)
    assert generate(trained) == 130
    assert capsys.readouterr().err == "\nstopped\n"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tokens", "-1"], "max_new_tokens -1"),
        (["--temperature", "-1"], "temperature -1.0 must be 0 or more"),
        (["--top-k", "0"], "top_k must be at least 1"),
        (["--top-p", "2"], "top_p must be in (0, 1]"),
        (["--samples", "0"], "samples must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be 0 or more"),
        (["--prompt", ""], "'--prompt' is empty"),
        (["--prompt", "a", "--prompt-file", "b"], "not both"),
        (["--prompt-file", "nowhere.txt"], "there is no file or folder 'nowhere.txt'"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_refused_settings_are_one_line(
    trained: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert generate(trained, *more) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
