"""``contentrope finetune``: what it writes, how it goes on, what it refuses; and `generate` with what it wrote."""

from __future__ import annotations

import importlib.util
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.cli import main
from contentrope.evaluation.perplexity import perplexity
from contentrope.results import read_json, write_json
from contentrope.training.loop import Run

if not importlib.util.find_spec("transformers"):
    pytest.skip("needs transformers", allow_module_level=True)

import contentrope.hf as chf
from contentrope.corpora import read_text
from contentrope.hf.characters import character_tokenizer, encode
from contentrope.hf.finetune import CausalLM
from contentrope.hf.loading import load_any
from experiments.converted import save_plain
from tests.experiments.retrofit.tiny import TOKENIZER, lively_reader, saved_original
from tests.hf.models import tiny

SIZES = ["--length", "16", "--steps", "6", "--batch-size", "2", "--warmup", "1", "--learning-rate", "0.01"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_original(tmp_path_factory.mktemp("original") / "model")


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters") / "letters.txt"
    path.write_text("abc de\nfgh\nab\n" * 150)
    return path


def words(original: Path, letters: Path, out: Path, *more: str) -> list[str]:
    start = ["finetune", "--model", str(original), "--text", str(letters), "--out", str(out), "--device", "cpu"]
    return [*start, *SIZES, *more]


@pytest.fixture(scope="module")
def tuned(original: Path, letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "run"
    assert main(words(original, letters, out)) == 0
    return out


def test_everything_about_a_run_is_written(original: Path, letters: Path, tuned: Path) -> None:
    found = read_json(tuned / "finetune.json")
    assert (found["model"], found["units"], found["length"]) == (str(original), "line", 16)
    assert found["addresses"]["competition"] == 1.0
    assert found["train"]["steps"] == 6
    assert found["environment"]["torch"] == torch.__version__
    assert found["trained_parameters"] == found["parameters"]
    assert {path.name for path in tuned.iterdir()} == {"model", "metrics.jsonl", "finetune.json", ".contentrope"}
    for name, folder in (("before", original), ("after", tuned / "model")):
        model, tokenizer = load_any(str(folder))
        ids = encode(read_text([str(letters)]), tokenizer).held_out
        assert list(found[name]) == ["4", "8", "16", "32", "64"]
        for length in found[name]:
            expected = perplexity(CausalLM(model), ids, int(length), max_tokens=(len(ids) - 1) // 64 * 64)
            assert found[name][length] == pytest.approx(expected, rel=1e-5)
    assert found["after"]["64"] < found["before"]["64"]


def test_lora_writes_an_adapter_and_leaves_the_model(
    original: Path, letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (original / "model.safetensors").read_bytes()
    more = ["--lora", "2", "--units", "5", "--positions", "local", "--competition", "0", "--longest-unit", "9"]
    monkeypatch.chdir(original.parent)
    assert main(words(Path(original.name), letters, tmp_path / "run", *more)) == 0
    monkeypatch.chdir(tmp_path)  # where the model's relative path leads nowhere
    found = read_json(tmp_path / "run" / "finetune.json")
    assert found["trained_parameters"] < found["parameters"]
    assert (original / "model.safetensors").read_bytes() == before
    files = {path.name for path in (tmp_path / "run" / "model").iterdir()}
    assert {"adapter_model.safetensors", "contentrope.safetensors"} <= files
    assert not [file for file in files if file.startswith("model")]
    adapter = chf.adapter_of(load_any(str(tmp_path / "run" / "model"))[0])
    assert (adapter.segmenter.rule.n, adapter.segmenter.max_length, adapter.competition) == (5, 9, 0.0)


@pytest.mark.parametrize("lora", ["0", "2"])
def test_a_near_window_is_trained_and_comes_back(
    lora: str, original: Path, letters: Path, tuned: Path, tmp_path: Path
) -> None:
    assert main(words(original, letters, tmp_path / "run", "--window", "6", "--lora", lora)) == 0
    found, without = read_json(tmp_path / "run" / "finetune.json"), read_json(tuned / "finetune.json")
    assert (found["addresses"]["window"], without["addresses"]["window"]) == (6, 0)
    assert found["after"] != without["after"]
    assert found["after"]["64"] < found["before"]["64"]
    adapter = chf.adapter_of(load_any(str(tmp_path / "run" / "model"))[0])
    assert (adapter.window, adapter.gate) == (6, 0.0)
    assert not adapter.addresses.are_zero()


def test_low_rank_changes_leave_weights_in_their_own_precision(letters: Path, tmp_path: Path) -> None:
    save_plain(lively_reader().model.to(torch.bfloat16), TOKENIZER, tmp_path / "model")
    for lora, expected in (("2", torch.bfloat16), ("0", torch.float32)):
        out = tmp_path / f"run-{lora}"
        assert main(words(tmp_path / "model", letters, out, "--lora", lora, "--steps", "2", "--precision", "bf16")) == 0
        model, _ = load_any(str(out / "model"))
        assert model.get_input_embeddings().weight.dtype == expected
        assert all(weight.dtype == torch.float32 for weight in chf.adapter_of(model).trained.parameters())


@pytest.mark.parametrize("lora", ["0", "2"])
@pytest.mark.parametrize("name", ["qwen3", "smollm3", "gemma3"])
def test_other_architectures_are_tuned_and_write(
    name: str, lora: str, letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plain(tiny(name, dtype=torch.float32), TOKENIZER, tmp_path / "model")
    assert main(words(tmp_path / "model", letters, tmp_path / "run", "--lora", lora, "--steps", "2")) == 0
    found = read_json(tmp_path / "run" / "finetune.json")
    assert found["after"]["16"] < found["before"]["16"]
    capsys.readouterr()
    assert generate("--model", str(tmp_path / "run"), "--prompt", "abc\nab", "--tokens", "5") == 0
    assert capsys.readouterr().out.startswith("abc\nab")


@pytest.mark.parametrize("inside", ["model", "."])
def test_a_model_that_has_addresses_is_not_converted_again(
    inside: str, tuned: Path, letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tuned / inside, letters, tmp_path / "run")) == 2
    assert str(tuned) in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()


def test_a_tokenizer_that_knows_more_than_its_model_is_refused(
    original: Path, letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(original, tmp_path / "model")
    larger = character_tokenizer("".join(map(chr, range(32, 127))) + "\n")
    larger.save_pretrained(tmp_path / "model")
    for command in (
        words(tmp_path / "model", letters, tmp_path / "run"),
        ["generate", "--model", str(tmp_path / "model")],
    ):
        assert main([*command, *(["--prompt", "zz", "--device", "cpu"] if command[0] == "generate" else [])]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert str(tmp_path / "model") in error


@pytest.mark.parametrize("file", ["config.json", "contentrope.safetensors", "model.contentrope.safetensors"])
def test_generate_says_in_one_line_that_a_file_is_damaged(
    file: str, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tuned, tmp_path / "run")
    damaged = tmp_path / "run" / "model" / file
    damaged.write_bytes(damaged.read_bytes()[:-40])
    assert generate("--model", str(tmp_path / "run"), "--prompt", "abc", "--tokens", "5") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / "run" / "model") in error


def test_ctrl_c_then_the_same_command_ends_like_a_run_in_one_piece(
    original: Path,
    letters: Path,
    tuned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    advance = Run.advance

    def press(run: Run) -> None:
        advance(run)
        if run.step == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "advance", press)
    command = words(original, letters, tmp_path)
    assert main(command) == 130
    assert shlex.join(["contentrope", *command]) in capsys.readouterr().err
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["step-00000003"]
    assert main([*command, "--competition", "0"]) == 2
    assert "addresses.competition: 0.0 here, 1.0 in the file" in capsys.readouterr().err
    assert main(command) == 0
    ours, theirs = (load_any(str(folder / "model"))[0].state_dict() for folder in (tmp_path, tuned))
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert not (tmp_path / "checkpoint").exists()


def test_a_finished_run_is_neither_repeated_nor_changed(
    original: Path,
    letters: Path,
    tuned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(tuned, tmp_path / "run")
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("trained again"))
    assert main(words(original, letters, tmp_path / "run")) == 0
    assert "is finished already" in capsys.readouterr().out
    assert main(words(original, letters, tmp_path / "run", "--units", "sentence")) == 2
    assert "units: 'sentence' here, 'line' in the file" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"before": 3}, {"after": {}}, {"trained_parameters": "many"}])
def test_a_finetune_json_that_lost_something_is_one_line(
    original: Path, letters: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict
) -> None:
    out = Path(shutil.copytree(tuned, tmp_path / "run"))
    write_json(out / "finetune.json", {**read_json(out / "finetune.json"), **change})
    assert main(words(original, letters, out)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(out / "finetune.json") in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "/nowhere/model"], "there is no folder '/nowhere/model'; check the path"),
        (["--model", "nobody/nothing"], "model 'nobody/nothing' is no folder here, and the hub did not give it"),
        (["--text", "nowhere.txt"], "there is no file or folder 'nowhere.txt'"),
        (["--units", "verse"], "units 'verse' is no kind of text"),
        (["--lora", "-1"], "lora must be 0, for all weights, or a rank"),
        (["--length", "500"], "too few for windows of length 500"),
        (["--window", "-1"], "window must be a whole number of tokens"),
        (["--window", "6", "--positions", "gated"], "positions 'gated': with window 6"),
        (["--window", "16"], "window 16 must be smaller than length 16"),
        (["--steps", "0"], "steps must be an integer of at least 1"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_refused_settings_are_one_line(
    original: Path,
    letters: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(words(original, letters, tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
@pytest.mark.parametrize("lora", ["0", "2"])
def test_several_processes_tune_one_model(lora: str, original: Path, letters: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [*launch, "-m", "contentrope", *words(original, letters, tmp_path / "two", "--lora", lora)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "two" / "finetune.json")["processes"] == 2
    assert main(words(original, letters, tmp_path / "one", "--lora", lora)) == 0
    ours, theirs = (load_any(str(tmp_path / name / "model"))[0].state_dict() for name in ("two", "one"))
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], atol=1e-3, rtol=0)


# --- generate ------------------------------------------------------------------------------------------------------


def generate(*more: str) -> int:
    return main(["generate", "--device", "cpu", *more])


def test_the_text_is_that_of_the_models_own_generate(
    original: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, given in ((tuned / "model", tuned), (original, original)):
        assert generate("--model", str(given), "--prompt", "abc\nfg", "--tokens", "30", "--temperature", "0") == 0
        model, tokenizer = load_any(str(folder))
        ids = model.generate(**tokenizer("abc\nfg", return_tensors="pt"), max_new_tokens=30, do_sample=False)
        assert capsys.readouterr().out == tokenizer.decode(ids[0], skip_special_tokens=True) + "\n"


def test_what_is_drawn_depends_on_the_seed(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("0", "0", "1"):
        assert generate(str(tuned), "--prompt", "ab", "--tokens", "30", "--seed", seed, "--top-k", "9") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_several_samples_stop_at_the_end_of_a_line(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--prompt", "abc\nab", "--tokens", "60", "--samples", "3", "--stop-at-unit-end", "--top-p", "0.9"]
    assert generate("--model", str(tuned), *more) == 0
    printed = capsys.readouterr().out
    samples = printed.split("--- sample ")[1:]
    assert len(samples) == 3
    for sample in samples:
        text = sample.partition("\n")[2]
        assert text.startswith("abc\nab")
        assert text.removeprefix("abc\nab").rstrip("\n").count("\n") == 0


def test_tokens_appear_as_they_are_drawn(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Terminal(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert generate("--model", str(tuned), "--prompt", "abc", "--tokens", "4", "--temperature", "0") == 0
    assert [len(text) for text in seen[:5]] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "name one model"),
        (["--model", "nobody/nothing"], "hf download nobody/nothing --local-dir DIR"),
        (["--model", "ORIGINAL", "--stop-at-unit-end"], "has no addresses"),
        (["--model", "ORIGINAL", "--tokens", "0"], "tokens must be at least 1, got 0"),
        (["--model", "ORIGINAL", "--temperature", "-1"], "temperature -1.0 must be 0 or more"),
        (["--model", "ORIGINAL", "--top-k", "0"], "top_k must be at least 1"),
        (["--model", "ORIGINAL", "--top-p", "2"], "top_p must be in (0, 1]"),
        (["ORIGINAL", "--model", "ORIGINAL"], "name one model"),
    ],
)
def test_what_cannot_be_generated_is_one_line(
    original: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[Any], message: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert generate(*(str(original) if word == "ORIGINAL" else word for word in more)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
