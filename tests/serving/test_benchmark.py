"""The benchmark of looks runs and writes what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import look
from contentrope.results import read_json


def test_each_number_of_units_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "benchmark.json"
    sizes = ["--size", "tiny", "--units", "2", "40", "--tokens", "2", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["look", *sizes, "--out", str(out)])
    look.main()
    stored = read_json(out)
    few, many = stored["results"]
    assert (few["units"], many["units"], many["stored_tokens"]) == (2, 40, 320)
    assert few["bytes_per_token"] < many["bytes_per_token"]
    assert many["ratio"] > 0
    assert stored["config"]["model"]["num_hidden_layers"] == 2
