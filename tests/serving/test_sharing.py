"""Services on one store see each other's changes, and none undoes or loses what another has done."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contentrope.store.document_files import CLAIMS, FOLDER, STALE, hash_of
from tests.serving.served import DOCUMENTS, Held, Served, eventually

PATH = "/v1/documents"
Pair = tuple[Served, Served]


@pytest.fixture(scope="module", params=["folder", "memory"])
def running(
    request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Two services on one store, which know nothing of each other."""
    in_memory = request.param == "memory"
    store: Any = f"memory://{uuid.uuid4().hex}" if in_memory else tmp_path_factory.mktemp("shared") / "store"
    both = Served(model_folder, store), Served(model_folder, store)
    yield both
    for one in both:
        one.end()


@pytest.fixture
def pair(running: Pair) -> Pair:
    """Without documents, and without units."""
    place = running[0].service.documents.store.place
    for folder in (FOLDER, CLAIMS, "units"):
        for name in place.names(folder):
            place.remove(f"{folder}/{name}")
    return running


def texts_in(served: Served) -> dict[str, str]:
    listed = served.send("GET", PATH)[1]["data"]
    return {one["id"]: served.send("GET", f"{PATH}/{one['id']}")[1]["text"] for one in listed}


def files_of(served: Served, document: str) -> list[str]:
    names = served.service.documents.store.place.names(FOLDER)
    return sorted(name for name in names if name.startswith(hash_of(document)))


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, happens: Callable[[], object]) -> None:
    """What happens elsewhere just before a method does its work; once."""
    own, left = getattr(owner, name), [happens]

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()()
        return own(*args, **kwargs)

    monkeypatch.setattr(owner, name, overtaken)


def test_what_one_adds_changes_and_removes_the_other_has_with_its_next_request(pair: Pair) -> None:
    one, other = pair
    assert other.send("GET", PATH)[1]["data"] == []
    sky, grass = one.add(*DOCUMENTS[:2])
    assert other.ask(max_tokens=16, extra_body={"documents": [sky]}) == one.ask(
        max_tokens=16, extra_body={"documents": [sky]}
    )
    with_both = other.ask(max_tokens=16)
    assert with_both == one.ask(max_tokens=16)
    other.send("PUT", f"{PATH}/{sky}", {"text": DOCUMENTS[2]})
    assert one.send("GET", f"{PATH}/{sky}")[1]["text"] == DOCUMENTS[2]
    changed = one.ask(max_tokens=16)
    assert changed == other.ask(max_tokens=16) != with_both
    assert one.send("DELETE", f"{PATH}/{grass}")[0] == 200
    assert other.send("GET", f"{PATH}/{grass}")[0] == 404
    assert other.send("PUT", f"{PATH}/{grass}", {"text": "x"})[0] == 404
    assert texts_in(one) == texts_in(other) == {sky: DOCUMENTS[2]}
    assert other.ask(max_tokens=16) == one.ask(max_tokens=16) != changed


def test_a_document_that_is_begun_anew_under_an_old_id_is_seen(pair: Pair) -> None:
    """Its file is the first of its kind again, and as long as the old one."""
    one, other = pair
    for text in ("first text", "other text"):
        assert one.send("POST", PATH, {"text": text, "id": "mine"})[0] == 201
        assert other.send("GET", f"{PATH}/mine")[1]["text"] == text
        assert one.send("DELETE", f"{PATH}/mine")[0] == 200


def test_of_two_changes_at_once_everybody_has_the_same_whole_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair
    assert one.send("POST", PATH, {"text": DOCUMENTS[0], "id": "mine"})[0] == 201
    change = {"text": "of the other", "name": "other"}
    files = one.service.documents.files
    before(monkeypatch, files, "write", lambda: other.send("PUT", f"{PATH}/mine", change))
    assert one.send("PUT", f"{PATH}/mine", {"text": "of the one", "name": "one"})[0] == 200
    found = one.send("GET", f"{PATH}/mine")[1]
    assert (found["text"], found["name"]) in (("of the other", "other"), ("of the one", "one"))
    assert other.send("GET", f"{PATH}/mine")[1] == found
    assert other.ask() == one.ask()
    assert other.send("PUT", f"{PATH}/mine", {"text": "the last word"})[0] == 200
    assert texts_in(one) == texts_in(other) == {"mine": "the last word"}
    assert len(files_of(one, "mine")) == 1


def test_of_two_who_begin_one_document_at_once_one_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair
    heard: list[int] = []

    def too() -> None:
        heard.append(other.send("POST", PATH, {"text": "of the other", "id": "mine"})[0])

    before(monkeypatch, one.service.documents.files, "write", too)
    assert one.send("POST", PATH, {"text": "of the one", "id": "mine"})[0] == 201
    assert heard == [409]
    assert other.send("POST", PATH, {"text": "of the other", "id": "mine"})[0] == 409
    assert texts_in(one) == texts_in(other) == {"mine": "of the one"}
    assert not one.service.documents.store.place.names(CLAIMS)


@pytest.mark.parametrize(("age", "status"), [(STALE + 1, 201), (0, 409)])
def test_a_claim_that_a_crash_left_is_no_claim_for_long(pair: Pair, age: float, status: int) -> None:
    one, other = pair
    one.service.documents.store.place.write(f"{CLAIMS}/{hash_of('mine')}", str(time.time() - age).encode())
    assert other.send("POST", PATH, {"text": "a text", "id": "mine"})[0] == status


@pytest.mark.parametrize("moment", ["while its units are removed", "before it is written"])
@pytest.mark.parametrize("mended", [True, False], ids=["", "not mended"])
def test_removing_a_document_leaves_the_units_of_one_that_is_just_added(
    pair: Pair, moment: str, mended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second sees what the first has done, and computes what is gone."""
    one, other = pair
    (mine,) = one.add(DOCUMENTS[0])
    answer = one.ask(max_tokens=16)
    made = {"text": DOCUMENTS[0], "id": "again"}
    if moment == "while its units are removed":
        documents = one.service.documents
        before(monkeypatch, documents.store, "remove", lambda: other.send("POST", PATH, made))
    else:
        documents = other.service.documents
        before(monkeypatch, documents.files, "write", lambda: one.send("DELETE", f"{PATH}/{mine}"))
    if not mended:
        monkeypatch.setattr(documents, "restore", lambda keys: None)
    if moment == "while its units are removed":
        assert one.send("DELETE", f"{PATH}/{mine}")[0] == 200
    else:
        assert other.send("POST", PATH, made)[0] == 201
    monkeypatch.undo()
    key = other.service.documents.get("again").key
    other.service.documents.store.catalog.refresh()
    assert other.service.documents.is_whole(key) is mended
    assert texts_in(one) == texts_in(other) == {"again": DOCUMENTS[0]}
    assert one.ask(max_tokens=16) == other.ask(max_tokens=16) == answer  # at the latest when they are asked for


def test_who_waits_for_a_document_that_another_removes_gets_the_answer_all_the_same(pair: Pair) -> None:
    one, other = pair
    sky, grass = one.add(*DOCUMENTS[:2])
    expected = one.ask(extra_body={"documents": [grass]})
    heard: list[str] = []
    with Held(other) as held:
        first = threading.Thread(target=lambda: other.ask(extra_body={"documents": [sky]}))
        first.start()
        held.wait()
        second = threading.Thread(target=lambda: heard.append(other.ask(extra_body={"documents": [grass]})))
        second.start()
        eventually(lambda: other.service.engine.queue_length == 1)
        assert one.send("DELETE", f"{PATH}/{grass}")[0] == 200
        held.release()
        first.join()
        second.join()
    assert heard == [expected]
    assert other.send("GET", f"{PATH}/{grass}")[0] == 404


def test_a_version_that_is_damaged_is_named_and_the_one_before_is_read(pair: Pair) -> None:
    one, other = pair
    assert one.send("POST", PATH, {"text": DOCUMENTS[0], "id": "mine"})[0] == 201
    (whole,) = files_of(one, "mine")
    damaged = f"{hash_of('mine')}.00000002-{'0' * 8}.json"
    one.service.documents.store.place.write(f"{FOLDER}/{damaged}", b'{"id": "mine", "te')
    for served in pair:
        assert served.send("GET", PATH)[1]["damaged"][0]["file"] == damaged
        assert served.send("GET", f"{PATH}/mine")[1]["text"] == DOCUMENTS[0]
        assert served.metric("damaged_documents") == 1
    assert other.ask() == one.ask()
    assert other.send("PUT", f"{PATH}/mine", {"text": DOCUMENTS[1]})[0] == 200
    assert texts_in(one) == {"mine": DOCUMENTS[1]}
    assert not {whole, damaged} & set(files_of(one, "mine"))
    assert "damaged" not in one.send("GET", PATH)[1]


def test_documents_of_another_service_count(model_folder: Path, tmp_path: Path) -> None:
    one, other = (Served(model_folder, tmp_path / "store", documents=2) for _ in range(2))
    one.add(*DOCUMENTS[:2])
    assert other.send("POST", PATH, {"text": "one more"})[0] == 400
    for served in (one, other):
        served.end()


def test_files_from_before_there_were_versions_are_read_and_replaced(pair: Pair) -> None:
    one, other = pair
    assert one.send("POST", PATH, {"text": DOCUMENTS[0], "id": "mine"})[0] == 201
    place = one.service.documents.store.place
    (name,) = files_of(one, "mine")
    data = place.read(f"{FOLDER}/{name}")
    assert data is not None
    place.remove(f"{FOLDER}/{name}")
    old = {**json.loads(data), "name": "old"}
    place.write(f"{FOLDER}/{hash_of('mine')}.json", json.dumps(old).encode())
    assert one.send("GET", f"{PATH}/mine")[1]["name"] == other.send("GET", f"{PATH}/mine")[1]["name"] == "old"
    assert other.send("PUT", f"{PATH}/mine", {"text": "new text"})[0] == 200
    assert texts_in(one) == {"mine": "new text"}
    assert len(files_of(one, "mine")) == 1


# --- what it costs ---


class Counted:
    """How often the documents of a service are listed."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listings = 0
        place = served.service.documents.store.place
        own = place.names

        def counted(folder: str) -> set[str]:
            self.listings += folder == FOLDER
            return own(folder)

        monkeypatch.setattr(place, "names", counted)


def test_a_request_lists_once_however_many_tokens_it_gets(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair
    one.add(*DOCUMENTS)
    counted = Counted(one, monkeypatch)
    for tokens in (1, 20):
        one.ask(max_tokens=tokens)
    assert counted.listings == 2


def test_requests_that_come_while_one_lists_share_the_next_listing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none shares one that had begun before it came."""
    one, _ = pair
    counted = Counted(one, monkeypatch)

    async def many() -> None:
        await asyncio.gather(*(one.service.refreshed() for _ in range(10)))

    asyncio.run_coroutine_threadsafe(many(), one._loop).result()
    assert counted.listings == 2


def test_a_store_that_cannot_be_listed_is_said_and_the_service_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    one.add(*DOCUMENTS)
    answer = one.ask()

    def gone(folder: str) -> set[str]:
        raise OSError("the network is gone")

    with monkeypatch.context() as patched:
        patched.setattr(one.service.documents.store.place, "names", gone)
        assert one.send("GET", PATH)[0] == 503
        assert one.send("GET", f"{PATH}/x")[1]["error"]["code"] == "storage"
    assert one.ask() == answer
