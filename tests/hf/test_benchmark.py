"""The benchmark of attached models runs and writes what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import hf
from contentrope.results import read_json

SMALL = ["--size", "tiny", "--context", "40", "--tokens", "5", "--unit", "4", "--repeats", "1"]


@pytest.mark.parametrize("what", ["decode", "train"])
def test_both_sides_are_timed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "benchmark.json"
    monkeypatch.setattr(sys, "argv", ["hf", what, *SMALL, "--out", str(out)])
    hf.main()
    stored = read_json(out)
    assert stored["benchmark"] == f"hf-{what}"
    assert (stored["config"]["seed"], stored["config"]["model"]["num_hidden_layers"]) == (0, 2)
    assert stored["environment"]["transformers"]
    assert stored["results"]["speed"] == pytest.approx(1 / stored["results"]["ratio"])
    assert f"{stored['results']['speed']:.3f}" in capsys.readouterr().out


def test_a_missing_device_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hf.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["hf", "decode", "--device", "cuda"])
    with pytest.raises(SystemExit) as stopped:
        hf.main()
    assert stopped.value.code == 2
    assert "there is no CUDA device here" in capsys.readouterr().err
