"""What is trained on, what is asked, how it is read, and that pieces are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.corpora import natural_questions as nq
from contentrope.errors import InputError
from contentrope.hf import readings
from contentrope.hf.chat import prompt_ids
from contentrope.hf.documents import Reading, document_of
from contentrope.results import read_json
from experiments import runner
from experiments.models import folder_of
from experiments.reader import models
from experiments.reader.config import MEASURES, PRESETS, ReaderConfig, reads_units
from experiments.reader.measuring import Answerer, as_measured
from experiments.reader.models import Material, refuse_if_shared
from experiments.reader.run import Reader
from experiments.report import write_report
from tests.experiments.growth.runs import Recorder
from tests.experiments.reader.tiny import TINY, TOKENIZER, FewQuestions, tiny

UNITS = "content:window=16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model") / "plain"


@pytest.fixture(autouse=True)
def few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "long_context", FewQuestions)
    monkeypatch.setattr(readings, "long_context", FewQuestions)


def run(config: ReaderConfig, out: Path, recorder: Recorder | None = None) -> dict[str, Any]:
    return runner.run(Reader(config), out, recorder or Recorder())


def of(results: Any, variant: str = UNITS, seed: int = 0) -> dict[str, Any]:
    return results["variants"][variant]["runs"][str(seed)]


def without_times(answers: Any) -> Any:
    if isinstance(answers, dict):
        return {name: without_times(value) for name, value in answers.items() if "seconds" not in name}
    return answers


# --- nothing that is scored is trained on --------------------------------------------------------------------------


def documents_and_prompts(config: ReaderConfig, steps: int = 12) -> tuple[str, Material]:
    material = Material(config, TOKENIZER)
    batches = [material.rows("cpu").at(step, 2, 0) for step in range(steps)]
    return "".join(TOKENIZER.decode(row) for batch in batches for row in batch.inputs["ids"]), material


def test_rows_hold_no_question_and_no_passage_that_is_scored(folder: Path) -> None:
    rows, material = documents_and_prompts(tiny(folder))
    assert material.scored
    for one in material.scored:
        assert nq.document(one) not in rows
        assert nq.question(one)[0]["content"] not in rows
    training = nq.split(FewQuestions().natural_questions()).training
    assert sum(nq.document(one) in rows for one in training) > 5, "the others are there"


@pytest.mark.parametrize("what", ["question", "passage"])
def test_a_planted_question_or_passage_is_caught(what: str, folder: Path) -> None:
    material = Material(tiny(folder), TOKENIZER)
    found, one = material.readings, material.scored[0]
    refuse_if_shared(found, material.scored, TOKENIZER, material.segmenter)
    ids, documents = found.training[0].ids, found.training[0].documents
    if what == "passage":
        documents = (document_of(nq.document(one), TOKENIZER, material.segmenter),)
    else:
        ids = torch.tensor([*prompt_ids(nq.question(one), TOKENIZER), 5])
    weights = torch.zeros(len(ids))
    weights[-1 if what == "question" else len(ids) - 8 :] = 1.0
    plant = Reading(documents, ids, weights)
    for place in ("training", "held_out"):
        planted = found._replace(**{place: [*getattr(found, place), plant]})
        with pytest.raises(InputError, match="is scored, and it or its passage is trained on"):
            refuse_if_shared(planted, material.scored, TOKENIZER, material.segmenter)


def test_all_variants_are_trained_on_the_same_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def look(fresh: Any, training: Any, rows: Any, *rest: Any) -> Any:
        seen[str(len(seen))] = rows.at(1, 2, 0)
        return fresh.model, {}

    monkeypatch.setattr(models, "trained_conversion", look)
    material = Material(tiny(folder), TOKENIZER)
    for variant in ("rope", "yarn:factor=2", UNITS, f"{UNITS},address=none"):
        models.trained(material, variant, 0, folder, "cpu", lambda report: None)
    plain, _, units, _ = seen.values()
    assert all(torch.equal(each.inputs["ids"], units.inputs["ids"]) for each in seen.values())
    assert all(torch.equal(each.targets, units.targets) for each in seen.values())
    assert set(plain.inputs) == {"ids"}
    assert set(units.inputs) == {"ids", "unit_ends", "unit_memory"}


def test_a_share_of_the_rows_is_made_of_books(folder: Path) -> None:
    material = Material(tiny(folder, text_share=0.5, length=700), TOKENIZER)
    batch = material.rows("cpu").at(0, 2, 0)
    assert [" is " in TOKENIZER.decode(row) for row in batch.inputs["ids"]] == [True, False]


# --- what is asked -------------------------------------------------------------------------------------------------


def test_the_passage_stands_where_it_is_asked_for_among_the_same_others(folder: Path) -> None:
    asked = Material(tiny(folder), TOKENIZER).asked(2)
    for one in asked:
        assert [one.documents(3, depth).index(one.gold) for depth in (0.0, 0.5, 1.0)] == [0, 1, 2]
        assert {*one.documents(3, 0.0)} == {*one.documents(3, 1.0)}
        assert one.documents(1, 1.0) == [one.gold]
        assert len({*one.documents(3, 0.5)}) == 3
    assert asked[0].question != asked[1].question


def test_more_passages_than_there_are_is_refused(folder: Path) -> None:
    config = tiny(folder, asking=replace(TINY.asking, passages=(1, 500)))
    with pytest.raises(InputError, match="questions are scored"):
        Material(config, TOKENIZER).asked(2)


def answerer(variant: str, folder: Path, place: Path | None) -> tuple[Answerer, Material]:
    material = Material(tiny(folder), TOKENIZER)
    model = models.converted(material.config, variant, TOKENIZER, material.books, "cpu").model.double()
    if hasattr(model, "contentrope"):
        torch.manual_seed(1)
        for weight in model.contentrope.by_turning.parameters():
            weight.data.normal_(std=0.5)
    return Answerer(model, TOKENIZER, material.segmenter, 3, place), material


@pytest.mark.parametrize("more", ["", ",address=none", ",address=random", ",competition=0"])
def test_stored_passages_are_read_alike_in_every_order(more: str, folder: Path, tmp_path: Path) -> None:
    found, material = answerer(f"{UNITS}{more}", folder, tmp_path / "store")
    (one,) = material.asked(1)
    first, last = (found.answer(one, one.documents(3, depth)) for depth in (0.0, 1.0))
    assert torch.equal(first.first, last.first)
    assert first.text == last.text
    at_once = found._written(found._prompt(one), *found._read_at_once(one.documents(3, 1.0)))
    torch.testing.assert_close(at_once.first, first.first, atol=1e-5, rtol=1e-5)
    other = found.answer(one, [*one.documents(3, 0.0)[:2], one.others[2] if len(one.others) > 2 else "other\n"])
    assert not torch.allclose(other.first, first.first, atol=1e-4), "the documents are read"


def test_a_text_is_read_in_its_order(folder: Path) -> None:
    found, material = answerer("rope", folder, None)
    (one,) = material.asked(1)
    first, last = (found.answer(one, one.documents(3, depth)) for depth in (0.0, 1.0))
    assert not torch.allclose(first.first, last.first, atol=1e-4)
    text = "".join(one.documents(3, 0.0))
    ids = [*TOKENIZER(text)["input_ids"], *prompt_ids(nq.question(one.question), TOKENIZER)]
    with torch.no_grad():
        expected = found.model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(first.first, expected.float(), atol=1e-5, rtol=1e-5)
    assert found.orders([one], 3)["difference"] > 1e-4


def test_random_addresses_belong_to_a_unit_and_are_drawn_anew_in_training(folder: Path, tmp_path: Path) -> None:
    found, _ = answerer(f"{UNITS},address=random", folder, tmp_path / "store")
    adapter, ids = found.model.contentrope, torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7]])
    segmenter = found.segmenter.marked_by_mask()
    ends = torch.tensor([[False, False, True, False, True, False, False, True]])
    units, _ = segmenter.advance(segmenter.initial(1), ids, ends=ends)
    embedded = found.model.get_input_embeddings()(ids)

    def drawn() -> torch.Tensor:
        return adapter(embedded, units, units.unit, None)[0][0, :3]

    first = drawn()
    assert torch.equal(first[0], first[2]), "the same tokens"
    assert (first[0] - first[1]).abs().max() > 0.1
    assert torch.equal(first, drawn())
    adapter.train()
    assert not torch.equal(drawn(), drawn())


@torch.no_grad()
def test_a_gpu_reads_in_the_precision_of_its_training(folder: Path, tmp_path: Path) -> None:
    found, material = answerer(UNITS, folder, tmp_path / "store")
    ids = torch.tensor([TOKENIZER(nq.document(material.scored[0]))["input_ids"]])
    before = found.model.float()(ids).logits
    buffers = {name: value.clone() for name, value in found.model.named_buffers()}
    assert as_measured(found.model, "bf16", "cpu").dtype == torch.float32
    model = as_measured(found.model, "bf16", "cuda:0")
    assert model.dtype == torch.bfloat16
    assert all(weight.dtype == torch.float32 for weight in model.contentrope.parameters())
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    torch.testing.assert_close(model(ids).logits.float(), before, atol=0.1, rtol=0.1)


# --- pieces --------------------------------------------------------------------------------------------------------


def test_everything_is_measured_and_shown(folder: Path, tmp_path: Path) -> None:
    results = run(tiny(folder), tmp_path)
    for variant in TINY.variants:
        found = of(results, variant)
        assert {count: set(depths) for count, depths in found["answers"].items()} == {"1": {"0"}, "3": {"0", "1"}}
        assert set(found["orders"]["3"]) == {"same", "difference"}
        assert ("storing_seconds" in found["answers"]["3"]["0"]) == reads_units(variant)
    cells = of(results)["answers"]["3"]
    assert without_times(cells["0"]) == without_times(cells["1"])
    assert of(results)["orders"]["3"]["same"] == 1.0
    assert of(results)["trained_tokens"] == 4 * 2 * 320
    assert "final_loss" not in of(results, "untouched")
    assert not list(tmp_path.rglob("checkpoint")), "nothing is left to measure"
    assert not list(tmp_path.rglob(".store"))
    page = write_report(tmp_path, tmp_path / "report")[0].read_text()
    assert all(words in page for words in ("Answers by number", "3 passages", "Order of passages"))


def test_what_was_measured_is_kept_when_the_rest_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(folder, variants=(UNITS,))
    expected = of(run(config, tmp_path / "whole"))
    honest = Reader.measured

    def measured(self: Reader, answerer: Any, piece: tuple[str, ...]) -> Any:
        if piece == ("answers", "3", "1"):
            raise KeyboardInterrupt
        return honest(self, answerer, piece)

    with monkeypatch.context() as patched:
        patched.setattr(Reader, "measured", measured)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut")
    stored = of(read_json(tmp_path / "cut" / "results.json"))
    assert {count: set(depths) for count, depths in stored["answers"].items()} == {"1": {"0"}, "3": {"0"}}
    assert (folder_of(tmp_path / "cut", UNITS, 0) / "checkpoint").exists()
    asked: list[Any] = []
    monkeypatch.setattr(Reader, "measured", lambda self, a, piece: asked.append(piece) or honest(self, a, piece))
    left_behind = folder_of(tmp_path / "cut", UNITS, 0) / ".store" / "store.json"
    left_behind.parent.mkdir(exist_ok=True)
    left_behind.write_text("of a process that was killed")
    again = Recorder()
    results = run(config, tmp_path / "cut", again)
    assert not left_behind.exists()
    assert asked == [("answers", "3", "1"), ("orders", "3")], "what is there is not measured again"
    assert again.of("trained") == [], "nor trained"
    assert without_times(of(results)["answers"]) == without_times(expected["answers"])
    assert of(results)["answers"]["1"] == stored["answers"]["1"]


def test_parts_can_be_asked_for_one_after_the_other(folder: Path, tmp_path: Path) -> None:
    config = tiny(folder, variants=(UNITS,))
    first = run(replace(config, measures=("orders",)), tmp_path)
    assert "answers" not in of(first)
    second = Recorder()
    results = run(config, tmp_path, second)
    assert second.of("trained") == []
    assert set(of(results)["answers"]) == {"1", "3"}
    assert of(results)["orders"] == of(first)["orders"]
    assert not list(tmp_path.rglob("checkpoint"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": ("content:units=sentence",)}, "all readers have the same units"),
        ({"variants": ("content:positions=gated",)}, "all readers have the same units"),
        ({"measures": ("tasks",)}, "measures are answers, orders"),
        ({"text_share": 1.5}, "text_share must be from 0 to 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **changes)
    for depths, passages in (((2.0,), (1,)), ((0.0,), (0,))):
        with pytest.raises(InputError, match="must be"):
            replace(TINY.asking, depths=depths, passages=passages)


def test_the_full_preset_keeps_to_its_budget_and_compares_what_it_should() -> None:
    paper = PRESETS["paper"]
    assert paper.training.steps * paper.training.batch_size * paper.length <= 50_000_000
    assert (paper.seeds, paper.asking.passages, len(paper.asking.depths)) == (3, (1, 5, 20, 100), 5)
    assert paper.measures == MEASURES
    kinds = {"untouched", "rope", "yarn:factor=8"}
    assert kinds <= set(paper.variants)
    assert {getattr(models.parse_conversion(v), "address", None) for v in paper.main} == {
        None, "content", "none", "random",
    }  # fmt: skip
