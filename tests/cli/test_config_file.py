"""Options from a file: as if typed, and what is typed goes before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contentrope.cli.commands import parse
from contentrope.cli.finetune import Finetune
from contentrope.errors import InputError


def parsed(file: Path, text: str, *words: str) -> Any:
    file.write_text(text)
    return parse(["finetune", "--config", str(file), *words])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


NEEDED = "model: some/model\nout: runs/mine\n"


def test_options_come_from_the_file_and_the_command_line_goes_before_it(file: Path) -> None:
    text = NEEDED + "text: [a.txt, b.txt]\nlength: 64\nlearning-rate: 2e-4\nsteps: 7\nunits: 32\nmarker: null\n"
    found = parsed(file, text, "--length=128", "--steps", "9")
    assert isinstance(found, Finetune)
    assert (found.model, found.text, found.units, found.marker) == ("some/model", ("a.txt", "b.txt"), "32", None)
    assert (found.length, found.training.steps, found.training.learning_rate) == (128, 9, 2e-4)
    assert parsed(file, text).length == 64
    assert parsed(file, text, "--text", "c.txt").text == ("c.txt",)


def test_the_result_of_another_run_is_a_file_of_options(file: Path) -> None:
    found = parsed(file, '{"model": "x", "loss": 1.5, "options": {"model": "m", "out": "o", "lora": 3}}')
    assert (found.model, found.lora) == ("m", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed: 3\n", "the key 'speed', which is no option; there are model, out, text"),
        ("config: other.yaml\n", "the key 'config'"),
        ("3: 3\n", "the key 3"),
        ("length: [1, {}]\n", "length is .* the options are model, out, text"),
        ("length: {a: 1}\n", "length is .* the options are model"),
        ("gated: true\n", "the key 'gated'"),
        ("length: true\n", "length is True"),
        ("- a\n", "holds no options"),
        ("just words\n", "holds no options"),
        ("", "holds no options"),
        ("a: [\n", "is not YAML"),
        ("!!python/object:os.system {}\n", "is not YAML"),
    ],
)
def test_what_is_no_option_is_refused_with_those_there_are(file: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parsed(file, text)
    assert str(file) in str(caught.value)


def test_a_value_of_the_wrong_type_is_refused_as_if_typed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, option in (("length: many\n", "--length"), ("steps: 1.5\n", "--steps"), ("positions: up\n", "positions")):
        with pytest.raises(SystemExit):
            parsed(file, NEEDED + text)
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert option in error


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match="there is no file"):
            parse(["finetune", f"--config={place}"])
