"""The benchmarks of the store run and write what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from benchmarks import store, store_growth, store_precision
from contentrope.results import read_json
from contentrope.store import UnitStore
from tests.store.helpers import DOCUMENTS, LONG, model_for

SMALL = ["--size", "tiny", "--tokens", "40", "--unit-length", "8", "--question", "4", "--edited", "5", "--many", "70"]


def test_all_parts_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "benchmark.json"
    monkeypatch.delenv(store.VARIABLE, raising=False)
    monkeypatch.setattr(
        sys, "argv", ["store", *SMALL, "--questions", "20", "--uncounted", "3", "--repeats", "1", "--out", str(out)]
    )
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
    shuffled = results["shuffled"]
    assert (shuffled["units"], shuffled["questions"], shuffled["questions_at_each_end"]) == (70, 20, 4)
    assert shuffled["late_to_early"] == pytest.approx(shuffled["late_seconds"] / shuffled["early_seconds"])


def test_growth_is_measured_over_parts_of_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "benchmark.json"
    small = ["--size", "tiny", "--tokens", "16", "48", "--unit-length", "8", "--decoded", "2", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["store_growth", *small, "--precision", "int8", "--out", str(out)])
    store_growth.main()
    results = read_json(out)["results"]
    assert results["first_token"]["48"]["bytes"] == 3 * results["first_token"]["16"]["bytes"]
    assert results["decoding"]["tokens"] == 48


def test_precision_is_compared_on_a_text(tmp_path: Path) -> None:
    """With the tiny models of the tests; the command itself needs real weights and texts, and says so."""
    model = model_for(dtype=torch.float32)
    model.generation_config.eos_token_id = None
    stores = {name: UnitStore(tmp_path / name, model, precision=name) for name in ("model", "int8")}
    found = store_precision.compared(stores, [*DOCUMENTS, LONG], [40, 41, 42, 43, 44, 45], 3)
    assert found["tokens"] == sum(map(len, DOCUMENTS)) + len(LONG)
    assert 0 < found["mean_difference"] <= found["largest_difference"]
    assert found["perplexity"]["model"] != found["perplexity"]["int8"]
    same = store_precision.compared({"model": stores["model"], "int8": stores["model"]}, DOCUMENTS, [40, 41, 42], 3)
    assert (same["largest_difference"], same["likeliest_agree"], same["greedy_agree_until"]) == (0, 1, 3)


def test_what_precision_needs_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(store.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", ["store_precision"])
    with pytest.raises(SystemExit) as stopped:
        store_precision.main()
    assert stopped.value.code == 2
    assert store.VARIABLE in capsys.readouterr().err


def test_a_missing_device_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(store.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["store", "--device", "cuda"])
    with pytest.raises(SystemExit) as stopped:
        store.main()
    assert stopped.value.code == 2
    assert "there is no CUDA device here" in capsys.readouterr().err
