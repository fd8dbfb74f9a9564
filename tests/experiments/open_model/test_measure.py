"""What is measured, and that it is kept piece by piece."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.errors import InputError
from contentrope.hf.plain import load_model
from contentrope.results import read_json
from experiments import runner
from experiments.models import folder_of
from experiments.open_model import measuring, models
from experiments.open_model.config import MEASURES, OpenModelConfig, Reading
from experiments.open_model.models import Books
from experiments.open_model.run import OpenModel
from experiments.report import write_report
from experiments.results import missing, read
from tests.experiments.growth.runs import Recorder
from tests.experiments.open_model.tiny import TINY, TOKENIZER, FewBooks, tiny

WINDOW = "content:window=16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model") / "plain"


@pytest.fixture(autouse=True)
def few_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "long_context", FewBooks)
    monkeypatch.setattr(measuring, "long_context", FewBooks)


def run(config: OpenModelConfig, out: Path, recorder: Recorder | None = None) -> dict[str, Any]:
    return runner.run(OpenModel(config), out, recorder or Recorder())


def of(results: Any, variant: str = WINDOW, seed: int = 0) -> dict[str, Any]:
    return results["variants"][variant]["runs"][str(seed)]


def has_checkpoint(out: Path, variant: str = WINDOW, seed: int = 0) -> bool:
    return (folder_of(out, variant, seed) / "checkpoint").exists()


# --- pieces --------------------------------------------------------------------------------------------------------


def test_everything_is_measured_and_shown(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ends_of_paragraphs", lambda tokenizer: tokenizer("\n")["input_ids"])
    config = tiny(folder, measures=MEASURES)
    results = run(config, tmp_path)
    for variant in config.variants:
        found = of(results, variant)
        assert set(found["perplexity"]) == {"16", "64"}
        assert set(found["short"]) == {"contained", "exact", "f1"}
        assert found["by_position"]["edges"] == [0, 16, 32]
        assert set(found["distant"]["perplexity"]) == {"as written", "shuffled", "deleted", "replaced"}
    assert set(of(results)["tasks"]) == {"kv_2", "kv_3"}
    assert set(of(results, "untouched")["tasks"]) == {"kv_2"}, "few tasks of what is no main variant"
    assert "final_loss" not in of(results, "untouched")
    assert of(results)["trained_tokens"] == 4 * 2 * 32
    assert not list(tmp_path.rglob("checkpoint")), "nothing is left to measure"
    page = (write_report(tmp_path, tmp_path / "report")[0]).read_text()
    assert all(words in page for words in ("Perplexity by tokens read", "2 keys", "Short texts", "tokens in the last"))


def test_what_was_measured_is_kept_when_the_rest_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, whole = tiny(folder), tmp_path / "whole"
    expected = of(run(config, whole))
    honest = OpenModel.measured

    def measured(self: OpenModel, model: Any, piece: tuple[str, ...]) -> Any:
        if piece == ("tasks", "kv_3", "3"):
            raise KeyboardInterrupt
        return honest(self, model, piece)

    monkeypatch.setattr(OpenModel, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut")
    stored = of(read_json(tmp_path / "cut" / "results.json"))
    assert stored["perplexity"] == expected["perplexity"]
    assert stored["tasks"] == {"kv_2": {"2": expected["tasks"]["kv_2"]["2"]}}

    asked = []
    monkeypatch.setattr(OpenModel, "measured", lambda self, m, piece: asked.append(piece) or honest(self, m, piece))
    again = Recorder()
    results = run(config, tmp_path / "cut", again)
    assert asked == [("tasks", "kv_3", "3")], "what is there is not measured again"
    assert again.of("trained") == [], "nor trained"
    assert of(results)["tasks"] == expected["tasks"]


@pytest.mark.parametrize("more", ["", ",address=none", ",train=lora"])
def test_parts_can_be_asked_for_one_after_the_other(more: str, folder: Path, tmp_path: Path) -> None:
    name = f"{WINDOW}{more}"
    config = tiny(folder, variants=(name,), main=(name,))
    first = run(replace(config, measures=("perplexity",)), tmp_path)
    assert "tasks" not in of(first, name)
    assert has_checkpoint(tmp_path, name), "more may be measured"
    second = Recorder()
    results = run(replace(config, measures=("tasks",)), tmp_path, second)
    assert second.of("trained") == []
    assert of(results, name)["perplexity"] == of(first, name)["perplexity"]
    assert set(of(results, name)["tasks"]) == {"kv_2", "kv_3"}
    assert results["config"]["measures"] == ["perplexity", "tasks"]
    assert of(results, name)["tasks"] == of(run(config, tmp_path / "at-once"), name)["tasks"]
    third = Recorder()
    run(config, tmp_path, third)
    assert third.of("kept") == [(name,)]


def test_other_settings_are_refused_in_the_same_folder(folder: Path, tmp_path: Path) -> None:
    config = tiny(folder, variants=("untouched",), measures=("perplexity",))
    run(config, tmp_path)
    with pytest.raises(InputError, match="holds another run"):
        run(replace(config, length=48), tmp_path)


def test_only_main_variants_have_all_seeds(folder: Path, tmp_path: Path) -> None:
    config = tiny(folder, variants=("rope", WINDOW), seeds=2, measures=("perplexity",))
    results = run(config, tmp_path)
    assert {name: list(entry["runs"]) for name, entry in results["variants"].items()} == {
        "rope": ["0"],
        WINDOW: ["0", "1"],
    }
    assert of(results)["perplexity"] != of(results, seed=1)["perplexity"]
    assert missing(read(tmp_path)) == []
    del results["variants"][WINDOW]["runs"]["1"]
    assert missing(results) == [f"{WINDOW}, seed 1"]


def test_variants_may_be_measured_beside_each_other_only_where_data_is_found(folder: Path, tmp_path: Path) -> None:
    """The settings alone go to another process; it says what it lacks."""
    experiment = OpenModel(tiny(folder))
    again = experiment.__reduce__()
    assert again == (OpenModel, (experiment.config,))


# --- numbers -------------------------------------------------------------------------------------------------------


def books(folder: Path) -> Books:
    return models.read_books(tiny(folder), TOKENIZER)


def test_windows_of_all_lengths_score_the_same_tokens(folder: Path) -> None:
    reading = replace(TINY.reading, lengths=(16, 32, 64))
    found = {length: measuring.windows(books(folder), reading, length) for length in reading.lengths}
    assert {length: rows.shape for length, rows in found.items()} == {n: (4, n + 1) for n in reading.lengths}
    for rows in found.values():
        assert torch.equal(rows[:, -17:], found[16])
    assert len({tuple(row.tolist()) for row in found[16]}) == 4, "places differ"
    stored = books(folder).held_out
    texts = [TOKENIZER.decode(ids) for ids in stored.values()]
    assert all(any(TOKENIZER.decode(row) in text for text in texts) for row in found[64]), "no window spans two books"


@torch.no_grad()
def test_perplexity_is_that_of_the_last_tokens(folder: Path) -> None:
    model, reading = load_model(str(tiny(folder).model)).eval(), TINY.reading
    rows = measuring.windows(books(folder), reading, 64)
    said = model(rows[:, :-1]).logits.log_softmax(-1).gather(2, rows[:, 1:, None])[..., 0]
    expected = math.exp(-said[:, -reading.scored :].mean())
    assert measuring.perplexity_at(model, books(folder), reading, 64) == pytest.approx(expected, rel=1e-5)
    assert math.exp(-said.mean()) != pytest.approx(expected, rel=1e-3)


def test_perplexity_by_position_joins_up_with_the_whole(folder: Path) -> None:
    model = load_model(str(tiny(folder).model))
    reading = replace(TINY.reading, lengths=(32, 64), scored=32, windows=1)
    found = measuring.by_position(model, books(folder), reading)
    joined = sum(n * math.log(value) for n, value in zip(found["tokens"], found["perplexity"], strict=True))
    whole = measuring.perplexity_at(model, books(folder), reading, 32)
    assert math.exp(joined / sum(found["tokens"])) == pytest.approx(whole, rel=1e-5)


def test_books_that_are_too_short_are_told_of(folder: Path) -> None:
    with pytest.raises(InputError, match="windows of 99,999 tokens fit into none of the books"):
        measuring.windows(books(folder), replace(TINY.reading, lengths=(99_999,)), 16)


def test_paragraphs_end_at_empty_lines() -> None:
    class Words:
        def __len__(self) -> int:
            return 4

        def batch_decode(self, rows: list[list[int]]) -> list[str]:
            return [["a", "\n", "\n\n", ".\n\n"][row[0]] for row in rows]

    assert measuring.ends_of_paragraphs(Words()) == [2, 3]
    with pytest.raises(InputError, match="leave out distant"):
        measuring.ends_of_paragraphs(TOKENIZER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scored": 17}, "scored 17 must fit into the shortest window, 16"),
        ({"position_length": 65}, "may be 64, the longest, at most"),
        ({"near": 64}, "near 64 must be less than distant_length 64"),
        ({"windows": 0}, "windows must be an integer of at least 1"),
    ],
)
def test_settings_of_the_reading_are_checked(change: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY.reading, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": (1, 2)}, "examples must be 1 numbers"),
        ({"few_tasks": ("vt",)}, "few_tasks and last_tasks must be among tasks; vt are not"),
    ],
)
def test_settings_of_the_tasks_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY.asking, **change)


def test_the_full_preset_asks_what_was_planned() -> None:
    config = OpenModelConfig()
    asking = config.asking
    assert dict(asking.sizes("vt")) == {4096: 50, 8192: 50, 16384: 50, 32768: 50, 65536: 20}
    assert dict(asking.sizes("niah_single_2"))[131072] == 10
    assert dict(asking.sizes("kv_75")) == {75: 50}
    assert dict(asking.sizes("kv_1000")) == {1000: 10}
    last = {task for kind, task, size in (p for p in config.pieces(config.main[0]) if len(p) == 3) if size == "131072"}
    assert last == set(asking.last_tasks)
    assert {p[1] for p in config.pieces("pi:factor=8") if p[0] == "tasks"} == set(asking.few_tasks)
    assert len(config.main) == 5
    assert isinstance(config.reading, Reading)
