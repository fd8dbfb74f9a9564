"""``contentrope index``: files become documents, once; what others wrote is left alone."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contentrope.cli import main
from tests.cli.refusals import require_refused

if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("openai") is None:
    pytest.skip("needs transformers and openai", allow_module_level=True)

from contentrope.hf.adapter import adapter_of
from contentrope.hf.loading import load_any
from contentrope.store import NamedDocument, NamedDocuments, UnitStore, indexing
from contentrope.store.text_files import LONGEST_ID, find_texts, id_of
from contentrope.store.workers import Opening, Worker

TEXTS = {"one.txt": "the first text\n", "more/two.md": "another one\nof two lines\n", "more/three.txt": "and a third"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.serving.served import save_model

    return save_model(tmp_path_factory.mktemp("indexed") / "tiny")


@pytest.fixture(scope="module")
def loaded(model: Path) -> Any:
    return load_any(str(model))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_text(text)
    return tmp_path / "notes"


@pytest.fixture
def opened(loaded: Any, tmp_path: Path) -> Callable[[], NamedDocuments]:
    """The documents of the store, as whoever opens it now has them."""
    return lambda: NamedDocuments(UnitStore(tmp_path / "store", *loaded))


@pytest.fixture
def index(model: Path, notes: Path, tmp_path: Path, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command; the model is loaded once."""
    monkeypatch.setattr("contentrope.hf.loading.load_any", lambda name, device: loaded)
    words = ["index", "--model", str(model), "--store", str(tmp_path / "store"), "--device", "cpu"]
    return lambda *more, text=notes: main([*words, "--text", str(text), *more])


def texts_of(documents: NamedDocuments) -> dict[str, str]:
    return {one.id: one.text for one in documents.by_id.values()}


def states_of(documents: NamedDocuments) -> dict[str, bytes]:
    """By unit, its keys and values as they are stored."""
    units = sorted({unit for one in documents.by_id.values() for unit in one.units})
    pieces = documents.store.read(units)
    return {unit: b"".join(x.numpy().tobytes() for x in piece.states) for unit, piece in pieces.items()}


def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are given to the store from now on."""
    texts: list[str] = []
    own = NamedDocuments.compute_all

    def noting(self: NamedDocuments, given: Any, progress: Any = None) -> Any:
        texts.extend(given)
        return own(self, given, progress)

    monkeypatch.setattr(NamedDocuments, "compute_all", noting)
    return texts


def test_every_file_is_a_document(index: Any, opened: Any, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (notes / ".hidden").write_text("not this")
    (notes / ".git").mkdir()
    (notes / ".git" / "config").write_text("nor this")
    (notes / "picture.png").write_bytes(b"\x89PNG\xff")
    (notes / "zeros").write_bytes(b"a\0b")
    (notes / "empty.txt").touch()
    assert index() == 0
    said = capsys.readouterr()
    documents = opened()
    assert texts_of(documents) == {name.replace("/", ":"): text for name, text in TEXTS.items()}
    two = documents.by_id["more:two.md"]
    assert (two.name, two.metadata["source"]) == ("more/two.md", str(notes / "more" / "two.md"))
    assert all(documents.is_whole(one.key) for one in documents.by_id.values())
    assert all(name in said.err for name in ("picture.png", "zeros", "empty.txt"))
    assert "hidden" not in said.err


def test_what_has_not_changed_costs_nothing_and_what_has_is_replaced(
    index: Any, opened: Any, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index() == 0
    before = opened()
    old = states_of(before)
    texts = computed(monkeypatch)
    assert index() == 0
    assert texts == []
    assert opened().by_id == before.by_id
    (notes / "one.txt").write_text("a new first text\n")
    assert index() == 0
    after = opened()
    assert texts == ["a new first text\n"]
    assert texts_of(after) == {**texts_of(before), "one.txt": "a new first text\n"}
    assert after.by_id["one.txt"].created == before.by_id["one.txt"].created
    assert before.by_id["one.txt"].key not in after.store
    new = states_of(after)
    kept = {unit for one in after.by_id.values() if one.id != "one.txt" for unit in one.units}
    assert kept
    assert all(old[unit] == new[unit] for unit in kept)


def test_what_the_store_has_lost_is_computed_again(index: Any, opened: Any) -> None:
    assert index() == 0
    before = opened()
    states = states_of(before)
    before.store.prune(0)
    assert index() == 0
    assert states_of(opened()) == states


def test_documents_of_others_are_neither_replaced_nor_removed(
    index: Any, opened: Any, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert index() == 0
    documents = opened()
    mine, _ = documents.compute("of a client")
    edited, _ = documents.compute("edited by a client")
    theirs: list[NamedDocument] = [
        replace(mine, id="client"),
        replace(edited, id="one.txt", metadata=documents.by_id["one.txt"].metadata),
        replace(mine, id="later.txt"),
    ]
    documents.keep(theirs)
    (notes / "one.txt").write_text("changed on the disk too\n")
    (notes / "later.txt").write_text("a file of the same name\n")
    capsys.readouterr()
    assert index("--remove-missing") == 0
    assert {one.id: one for one in theirs}.items() <= dict(opened().by_id).items()
    said = capsys.readouterr().err
    assert "one.txt" in said
    assert "later.txt" in said
    for name in ("one.txt", "later.txt"):
        (notes / name).unlink()
    assert index("--remove-missing") == 0
    assert {one.id: one for one in theirs}.items() <= dict(opened().by_id).items()


def test_documents_of_files_that_are_gone_are_removed_when_asked(
    index: Any, opened: Any, notes: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "four.txt").write_text("of another folder")
    assert index(text=other) == 0
    assert index() == 0
    (notes / "one.txt").unlink()
    (other / "four.txt").unlink()
    assert index() == 0
    assert set(texts_of(opened())) == {"one.txt", "four.txt", "more:two.md", "more:three.txt"}
    assert index("--remove-missing") == 0
    assert set(texts_of(opened())) == {"four.txt", "more:two.md", "more:three.txt"}, "the folders named, and no other"


def test_who_edits_a_document_while_its_file_is_found_missing_keeps_it(opened: Any, index: Any, notes: Path) -> None:
    assert index() == 0
    for name in ("one.txt", "more/two.md"):
        (notes / name).unlink()
    documents, other = opened(), opened()
    planned = indexing.plan(documents, find_texts([notes]).files, [notes])
    assert {one.id for one in planned.missing} == {"one.txt", "more:two.md"}
    edited, _ = other.compute("edited by a client")
    other.keep([replace(edited, id="one.txt", metadata=other.by_id["one.txt"].metadata)])
    assert indexing.remove_missing(documents, planned) == ["more:two.md"]
    assert opened().by_id["one.txt"].text == "edited by a client"


def test_an_empty_folder_removes_nothing(index: Any, opened: Any, notes: Path) -> None:
    """As one whose disk is not mounted."""
    assert index() == 0
    notes.rename(notes.with_name("elsewhere"))
    assert index("--remove-missing") == 2
    notes.mkdir()
    assert index("--remove-missing") == 2
    assert len(opened().by_id) == len(TEXTS)


def test_an_interrupted_run_goes_on_where_it_was(
    index: Any, opened: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(indexing, "MOST_AT_ONCE", 1)
    own, calls = NamedDocuments.compute_all, []

    def interrupted(self: NamedDocuments, texts: Any, progress: Any = None) -> Any:
        calls.append(texts)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return own(self, texts, progress)

    with monkeypatch.context() as patched:
        patched.setattr(NamedDocuments, "compute_all", interrupted)
        assert index() == 130
    assert "run the same command again" in capsys.readouterr().err
    assert len(opened().by_id) == 1
    texts = computed(monkeypatch)
    assert index() == 0
    assert len(texts) == 2
    assert len(opened().by_id) == 3


def test_the_store_and_the_model_are_no_documents(index: Any, opened: Any, tmp_path: Path, notes: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine.txt").write_text("within the store's folder")
    assert index(text=tmp_path) == 0
    assert set(texts_of(opened())) == {f"notes:{name.replace('/', ':')}" for name in TEXTS}


def test_patterns_and_a_prefix(index: Any, opened: Any) -> None:
    assert index("--pattern", "*.md", "more/th*", "--prefix", "n:") == 0
    assert set(texts_of(opened())) == {"n:more:two.md", "n:more:three.txt"}


def test_what_cannot_be_indexed_is_refused_in_one_line(
    model: Path, notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "twin").mkdir()
    (tmp_path / "twin" / "one.txt").write_text("of the same name")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused: dict[str, tuple[list[str], str]] = {
        "no such folder": (["--text", str(tmp_path / "none")], "none"),
        "binary": (["--text", str(tmp_path / "binary")], "binary"),
        "one id twice": (["--text", str(notes), str(tmp_path / "twin")], "one.txt"),
        "no text": (["--text", str(empty)], "no text"),
        "an odd prefix": (["--text", str(notes), "--prefix", "a/b"], "a/b"),
        "no workers": (["--text", str(notes), "--workers", "0"], "workers"),
    }
    out = tmp_path / "out"
    out.mkdir()
    for words, message in refused.values():
        given = ["index", "--model", str(model), "--store", str(out), "--device", "cpu", *words]
        require_refused(main, given, message, out, capsys)
    given = ["index", "--model", str(empty), "--store", str(out), "--text", str(notes), "--device", "cpu"]
    require_refused(main, given, "no model", out, capsys)


def test_the_example_of_the_documentation_runs(
    opened: Any, loaded: Any, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    (example,) = (block for block in re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL) if "add_files" in block)
    monkeypatch.chdir(tmp_path)
    exec(example, {"store": UnitStore(tmp_path / "store", *loaded)})
    assert len(opened().by_id) == len(TEXTS)


def test_ids_are_fit_for_clients_and_tell_files_apart(tmp_path: Path) -> None:
    names = [
        "a b.txt",
        "a-b.txt",
        "a/b.txt",
        "a:b.txt",
        "é.txt",
        "è.txt",
        "x" * 300,
        "x" * 301,
        "-",
        "_",
        "A.txt",
        "a.txt",
    ]
    ids = [id_of(name) for name in names]
    assert len(set(ids)) == len(names)
    from pydantic import TypeAdapter

    from contentrope.serving.schemas import Id

    for one in ids:
        assert TypeAdapter(Id).validate_python(one) == one
        assert len(one) <= LONGEST_ID
    (tmp_path / "a").write_text("\ufeffwith a mark of its order")
    assert find_texts([tmp_path]).files[0].text == "with a mark of its order"


def test_long_files_are_cut_as_the_store_cuts(index: Any, opened: Any, notes: Path, loaded: Any) -> None:
    (notes / "long.txt").write_text("".join(f"line {number} of many\n" for number in range(20)))
    assert index() == 0
    document = opened().by_id["long.txt"]
    assert document.tokens > adapter_of(loaded[0]).segmenter.max_length
    assert len(document.units) > 1


def test_the_store_may_be_in_8_bits(index: Callable[..., int], model: Path, notes: Path, tmp_path: Path) -> None:
    assert index("--precision", "int8") == 0
    store = UnitStore(tmp_path / "store", *load_any(str(model)), precision="int8")
    assert len(NamedDocuments(store).by_id) == len(TEXTS)
    assert store.stats()["precision"] == "int8"
    assert index() == 2  # it is of one precision
    assert len(NamedDocuments(store).by_id) == len(TEXTS)


def test_a_worker_opens_the_store_in_its_precision(model: Path, tmp_path: Path) -> None:
    made = Worker(Opening(str(model), str(tmp_path / "store"), "int8", "cpu"))
    assert made.documents.store.precision == "int8"
