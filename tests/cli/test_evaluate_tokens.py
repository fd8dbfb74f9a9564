"""``contentrope evaluate`` for Hugging Face models: the library's numbers, tasks, and what is kept with Ctrl-C."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.cli import main
from contentrope.evaluation.perplexity import perplexity
from contentrope.results import read_json

if not importlib.util.find_spec("transformers"):
    pytest.skip("needs transformers", allow_module_level=True)

import contentrope.hf as chf
from contentrope.cli import evaluate_tokens
from contentrope.corpora import read_text
from contentrope.corpora.long_context import DATA_VARIABLE
from contentrope.evaluation.answers import accuracy
from contentrope.evaluation.tasks import GROUPS, examples
from contentrope.hf.characters import encode
from contentrope.hf.finetune import CausalLM
from contentrope.hf.loading import load_any
from tests.experiments.retrofit.tiny import TOKENIZER, saved_original
from tests.support.long_context import small_data


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setenv("CONTENTROPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain model and one with addresses that matter."""
    place = tmp_path_factory.mktemp("models")
    plain = saved_original(place / "plain")
    model, tokenizer = load_any(str(plain))
    chf.attach(model, tokenizer, units="line", window=6, max_length=9, competition=1.0)
    with torch.no_grad():
        for weight in model.contentrope.parameters():
            weight.add_(0.5)
    chf.save_pretrained(model, place / "converted", tokenizer)
    return {"plain": plain, "converted": place / "converted"}


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters") / "letters.txt"
    path.write_text("abc de\nfgh\nab dcf\ngh\n" * 200)
    return path


def evaluate(folder: Path, *more: str) -> int:
    return main(["evaluate", str(folder), "--device", "cpu", *more])


@pytest.mark.parametrize("kind", ["plain", "converted"])
@pytest.mark.parametrize("part", ["held-out", "whole"])
def test_perplexity_of_the_last_tokens_at_every_length(
    kind: str, part: str, folders: dict[str, Path], letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    words = ["--text", str(letters), "--part", part, "--lengths", "8", "32", "--scored", "128", "--out", str(out)]
    assert evaluate(folders[kind], *words) == 0
    found, printed = read_json(out), capsys.readouterr().out
    model, tokenizer = load_any(str(folders[kind]))
    ids = encode(read_text([str(letters)]), tokenizer)
    ids = torch.cat(ids) if part == "whole" else ids.held_out
    for length in (8, 32):
        expected = perplexity(CausalLM(model), ids[-129:], length)
        assert found["perplexity"][str(length)] == pytest.approx(expected, rel=1e-5)
        assert f"{expected:.2f}" in printed
    assert (found["scored"], found["complete"], found["tasks"]) == (128, True, {})
    assert (found["model"]["addresses"] is not None) == (kind == "converted")
    assert found["settings"]["model"] == str(folders[kind])
    assert "tokens" in printed
    other = {"plain": "converted", "converted": "plain"}[kind]
    assert perplexity(CausalLM(load_any(str(folders[other]))[0]), ids[-129:], 32) != pytest.approx(expected, rel=1e-3)


def test_without_a_limit_all_whole_windows_are_scored(folders: dict[str, Path], letters: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert evaluate(folders["plain"], "--text", str(letters), "--lengths", "8", "100", "--out", str(out)) == 0
    ids = encode(read_text([str(letters)]), TOKENIZER).held_out
    assert read_json(out)["scored"] == (len(ids) - 1) // 100 * 100


def test_the_use_of_distant_text_by_lines(
    folders: dict[str, Path], letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    words = ["--text", str(letters), "--lengths", "8", "--distant", "100", "--recent", "20", "--out", str(out)]
    assert evaluate(folders["converted"], *words) == 0
    found, printed = read_json(out), capsys.readouterr().out
    assert found["by_position"]["edges"][-1] == 100
    assert (found["distant"]["length"], found["distant"]["near"]) == (100, 20)
    values = found["distant"]["perplexity"]
    assert len(set(values.values())) == len(values) == 4
    assert all(f"{value:.2f}" in printed for value in (*values.values(), *found["by_position"]["perplexity"]))


TASKS = ["--tasks", "kv_2,niah_single_1", "--task-lengths", "700", "900", "--examples", "3", "--seed", "5"]


def test_tasks_alone_are_a_table_of_accuracy(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[str, int], Any] = {}

    def known(model: Any, tokenizer: Any, task: str, asked: Any, **options: Any) -> tuple[float, list[str]]:
        options["progress"](len(asked))
        seen[task, len(asked[0].prompt)] = asked
        return (0.25 if task == "kv_2" else 0.75), []

    monkeypatch.setattr(evaluate_tokens, "accuracy", known)
    out = tmp_path / "found.json"
    assert main(["evaluate", "--model", str(folders["plain"]), "--device", "cpu", *TASKS, "--out", str(out)]) == 0
    found, printed = read_json(out), capsys.readouterr().out
    expected = {"kv_2": {"700": 0.25, "900": 0.25}, "niah_single_1": {"700": 0.75, "900": 0.75}}
    assert (found["tasks"], found["perplexity"], found["complete"]) == (expected, {}, True)
    assert [word in printed for word in ("0.25", "0.75", "mean", "0.50", "tokens")] == [True] * 5
    for length in (700, 900):
        asked = examples("niah_single_1", TOKENIZER, length, 3, 5)
        assert seen["niah_single_1", len(asked[0].prompt)] == asked


def test_a_model_really_answers(folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    words = ["--tasks", "kv_2", "--task-lengths", "400", "--examples", "2", "--out", str(out)]
    assert evaluate(folders["converted"], *words) == 0
    model, tokenizer = load_any(str(folders["converted"]))
    expected, _ = accuracy(model, tokenizer, "kv_2", examples("kv_2", tokenizer, 400, 2))
    assert read_json(out)["tasks"] == {"kv_2": {"400": expected}}


def test_haystacks_are_books_where_they_are_at_hand_and_else_the_text(
    folders: dict[str, Path], letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(model: Any, tokenizer: Any, task: str, asked: Any, **options: Any) -> tuple[float, list[str]]:
        seen.append(asked[0].prompt)
        return 0.0, []

    monkeypatch.setattr(evaluate_tokens, "accuracy", look)
    words = ["--text", str(letters), "--lengths", "8", "--scored", "8", "--tasks", "niah_single_2", "--examples", "1"]
    assert evaluate(folders["plain"], *words) == 0
    data = small_data(tmp_path / "small", monkeypatch)
    monkeypatch.setenv(DATA_VARIABLE, str(data.folder))
    assert evaluate(folders["plain"], *words) == 0
    assert ["dcf" in prompt for prompt in seen] == [True, False]
    assert ["house" in prompt for prompt in seen] == [False, True]


def test_ctrl_c_loses_the_running_task_only(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.125, 0.375])

    def until(*_: Any, **__: Any) -> tuple[float, list[str]]:
        value = next(values, None)
        if value is None:
            raise KeyboardInterrupt
        return value, []

    monkeypatch.setattr(evaluate_tokens, "accuracy", until)
    out = tmp_path / "found.json"
    assert evaluate(folders["plain"], *TASKS, "--out", str(out)) == 130
    printed, found = capsys.readouterr().out, read_json(out)
    assert (found["tasks"], found["complete"]) == ({"kv_2": {"700": 0.125}, "niah_single_1": {"700": 0.375}}, False)
    assert "0.12" in printed
    assert "0.38" in printed


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ([], ["--text", "--tasks"]),
        (["--tasks", "nothing"], ["'nothing'", *GROUPS, *GROUPS["ruler"]]),
        (["--tasks", "kv", "--task-lengths", "90"], ["length 90 is too short for task kv"]),
        (["--tasks", "kv", "--task-lengths", "0"], ["task-lengths must be one or more numbers of at least 1"]),
        (["--tasks", "kv", "--examples", "0"], ["examples must be at least 1, got 0"]),
        (["--tasks", "kv", "--chat"], ["no chat template"]),
        (["--tasks", "needle"], [DATA_VARIABLE, "long-context.tar.xz"]),
        (["--tasks", "babi"], [DATA_VARIABLE, "long-context.tar.xz"]),
        (["--tasks", "kv", "--model", "x"], ["name one model"]),
        (["--text", "{letters}", "--lengths", "9000"], ["windows of 9000 tokens do not fit"]),
        (["--text", "{letters}", "--scored", "0"], ["scored must be at least 1, got 0"]),
    ],
)
def test_refused_settings_are_one_line_and_write_nothing(
    more: list[str],
    messages: list[str],
    folders: dict[str, Path],
    letters: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.format(letters=letters) for word in more]
    assert evaluate(folders["plain"], *words, "--out", str(tmp_path / "found.json")) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert all(message in error for message in messages)
    assert not (tmp_path / "found.json").exists()


def test_models_of_characters_solve_no_tasks(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(trained, "--tasks", "kv") == 2
    assert "--tasks are for Hugging Face models" in capsys.readouterr().err
