"""The benchmark of the store runs and writes what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import store
from contentrope.results import read_json

SMALL = ["--size", "tiny", "--tokens", "40", "--unit-length", "8", "--question", "4", "--edited", "5", "--many", "70"]


def test_all_parts_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "benchmark.json"
    monkeypatch.delenv(store.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", ["store", *SMALL, "--questions", "20", "--repeats", "1", "--out", str(out)])
    store.main()
    stored = read_json(out)
    results = stored["results"]
    assert stored["config"]["weights"] == "random"
    assert results["time_to_first_token"]["warm"]["speed"] == pytest.approx(
        1 / results["time_to_first_token"]["warm"]["ratio"]
    )
    assert results["time_to_first_token"]["bytes_for_the_same_again"] == 0
    assert results["editing"]["edit_to_rebuild"] == pytest.approx(
        results["editing"]["edit_seconds"] / results["editing"]["rebuild_seconds"]
    )
    assert (results["shuffled"]["units"], results["shuffled"]["questions"]) == (70, 20)


def test_a_missing_device_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(store.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["store", "--device", "cuda"])
    with pytest.raises(SystemExit) as stopped:
        store.main()
    assert stopped.value.code == 2
    assert "there is no CUDA device here" in capsys.readouterr().err
