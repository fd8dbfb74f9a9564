"""Documents are kept, changed and removed one by one; the store holds what they need and no more."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import WriteError
from contentrope.store.document_files import FOLDER
from tests.serving.served import DOCUMENTS, Served

PATH = "/v1/documents"


def stored(served: Served) -> dict[str, bytes]:
    """By unit, its keys and values as they are stored."""
    documents = served.service.documents
    units = [unit for one in documents.by_id.values() for unit in one.units]
    pieces = documents.store.read(units)
    return {unit: b"".join(x.numpy().tobytes() for x in piece.states) for unit, piece in pieces.items()}


def test_documents_are_added_listed_read_and_removed(serve: Any) -> None:
    served = serve()
    named = {"id": "sky", "name": "Sky", "metadata": {"by": "me"}}
    status, one = served.send("POST", PATH, {"text": DOCUMENTS[0], **named})
    assert status == 201
    assert (one["id"], one["name"], one["metadata"], one["tokens"]) == ("sky", "Sky", {"by": "me"}, len(DOCUMENTS[0]))
    assert one["computed"]["tokens"] == len(DOCUMENTS[0])
    other = served.send("POST", PATH, {"text": DOCUMENTS[1]})[1]["id"]
    assert [found["id"] for found in served.send("GET", PATH)[1]["data"]] == ["sky", other]
    assert served.send("GET", f"{PATH}/sky")[1]["text"] == DOCUMENTS[0]
    assert served.send("DELETE", f"{PATH}/sky") == (200, {"id": "sky", "object": "document.deleted", "deleted": True})
    for method in ("GET", "DELETE"):
        assert served.send(method, f"{PATH}/sky")[0] == 404
    assert len(served.service.documents.store) == 1


def test_what_is_stored_already_is_not_computed_again(serve: Any) -> None:
    served = serve()
    first, again = (served.send("POST", PATH, {"text": DOCUMENTS[0]})[1] for _ in range(2))
    assert first["id"] != again["id"]
    assert (first["computed"]["units"], again["computed"]["units"], again["computed"]["tokens"]) == (1, 0, 0)
    assert served.send("DELETE", f"{PATH}/{first['id']}")[0] == 200
    assert served.send("GET", f"{PATH}/{again['id']}")[1]["text"] == DOCUMENTS[0]
    assert served.ask(extra_body={"documents": [again["id"]]})


def test_an_edit_computes_its_own_units_and_leaves_all_others(serve: Any) -> None:
    served = serve()
    lines = [f"line {number} of a longer text\n" for number in range(6)]
    ids = served.add(*DOCUMENTS, "".join(lines))
    before, answer = stored(served), served.ask(extra_body={"documents": ids[:3]})
    lines[3] = "another line\n"
    status, found = served.send("PUT", f"{PATH}/{ids[3]}", {"text": "".join(lines)})
    assert status == 200
    assert 0 < found["computed"]["tokens"] < found["tokens"]
    assert 0 < found["computed"]["units"] < len(found["units"])
    after = stored(served)
    gone = {unit for unit in before if unit not in after}
    assert gone
    assert not gone & served.service.documents.store.catalog.contents.units.keys()
    assert all(before[unit] == after[unit] for unit in before if unit in after)
    assert served.ask(extra_body={"documents": ids[:3]}) == answer
    assert served.send("GET", f"{PATH}/{ids[3]}")[1]["text"] == "".join(lines)


def test_an_edit_changes_the_answer_and_undoing_it_brings_it_back(serve: Any) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    before = served.ask(max_tokens=16)
    served.send("PUT", f"{PATH}/{ids[0]}", {"text": "nothing is blue.", "name": "new"})
    assert served.send("GET", f"{PATH}/{ids[0]}")[1]["name"] == "new"
    changed = served.ask(max_tokens=16)
    served.send("PUT", f"{PATH}/{ids[0]}", {"text": DOCUMENTS[0]})
    assert served.send("GET", f"{PATH}/{ids[0]}")[1]["name"] == "new"
    assert served.ask(max_tokens=16) == before != changed


def test_documents_are_there_again_after_a_restart(serve: Any) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    listed, answer = served.send("GET", PATH), served.ask()
    served.end()
    again = serve()
    assert again.send("GET", PATH) == listed
    assert again.ask() == answer
    assert again.service.documents.get(ids[0]).text == DOCUMENTS[0]


@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
def test_what_the_store_has_lost_is_computed_again_from_the_texts(serve: Any, damage: str) -> None:
    served = serve()
    served.add(*DOCUMENTS)
    answer = served.ask()
    served.end()
    for path in (Path(served.service.settings.store) / "units").iterdir():
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data if damage == "flipped" else data[:-100])
        if damage == "gone":
            path.unlink()
    assert serve().ask() == answer


def test_a_damaged_file_of_a_document_is_named_and_the_others_are_served(serve: Any) -> None:
    served = serve()
    sky, grass = served.add(*DOCUMENTS[:2])
    alone = served.ask(extra_body={"documents": [grass]})
    path = next(
        p for p in (Path(served.service.settings.store) / FOLDER).iterdir() if DOCUMENTS[0][:9] in p.read_text()
    )
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    for one in (serve(), served):  # one that starts, and one that has read it already and starts again
        if one is served:
            one.end()
            one = serve()
        listed = one.send("GET", PATH)[1]
        assert [found["id"] for found in listed["data"]] == [grass]
        assert [found["file"] for found in listed["damaged"]] == [path.name]
        assert one.ask() == alone
        assert one.send("GET", f"{PATH}/{sky}")[0] == 404
    path.write_bytes(whole)
    assert one.send("GET", f"{PATH}/{sky}")[1]["text"] == DOCUMENTS[0]
    assert "damaged" not in one.send("GET", PATH)[1]
    path.write_bytes(whole[:-5])
    again = serve()
    assert again.send("DELETE", f"{PATH}/{sky}")[0] == 200
    assert "damaged" not in again.send("GET", PATH)[1]


def test_a_full_disk_loses_nothing(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    listed, answer = served.send("GET", PATH), served.ask()

    def full(name: str, data: bytes) -> None:
        raise WriteError(errno.ENOSPC, "no room", name)

    with monkeypatch.context() as patched:
        patched.setattr(served.service.documents.store.place, "write", full)
        for method, path in (("POST", PATH), ("PUT", f"{PATH}/{ids[0]}")):
            status, found = served.send(method, path, {"text": "more than there is room for"})
            assert status == 507
            assert os.strerror(errno.ENOSPC) in found["error"]["message"]
    assert served.send("GET", PATH) == listed
    assert served.ask() == answer
    assert served.send("PUT", f"{PATH}/{ids[0]}", {"text": "now there is room"})[0] == 200


REFUSED: dict[str, tuple[str, str, Any, int]] = {
    "nothing": ("POST", PATH, {}, 400),
    "empty": ("POST", PATH, {"text": ""}, 400),
    "one of them empty": ("POST", PATH, {"text": ["a", ""]}, 400),
    "no texts": ("POST", PATH, {"text": []}, 400),
    "a number": ("POST", PATH, {"text": 3}, 400),
    "half a character": ("POST", PATH, {"text": "\udfff"}, 400),
    "an id with a slash": ("POST", PATH, {"text": "a", "id": "../a"}, 400),
    "an id for two": ("POST", PATH, {"text": ["a", "b"], "id": "c"}, 400),
    "metadata in depth": ("POST", PATH, {"text": "a", "metadata": {"a": {"b": 1}}}, 400),
    "an id that is taken": ("POST", PATH, {"text": "a", "id": "there"}, 409),
    "an unknown one": ("PUT", f"{PATH}/none", {"text": "a"}, 404),
    "changed to nothing": ("PUT", f"{PATH}/there", {"text": ""}, 400),
}


@pytest.fixture(scope="module")
def with_one(shared: Served) -> Served:
    assert shared.send("POST", PATH, {"text": "it is there", "id": "there"})[0] == 201
    return shared


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_document_is_refused_and_changes_nothing(with_one: Served, case: str) -> None:
    method, path, body, expected = REFUSED[case]
    before = with_one.send("GET", PATH)
    status, found = with_one.send(method, path, body)
    assert status == expected, found
    assert found["error"]["message"]
    assert with_one.send("GET", PATH) == before


def test_ids_that_differ_in_case_are_two_documents(serve: Any) -> None:
    served = serve()
    for name in ("a", "A"):
        assert served.send("POST", PATH, {"text": f"the text of {name.lower()} {name == 'A'}", "id": name})[0] == 201
    served.end()
    assert set(serve().service.documents.by_id) == {"a", "A"}


def test_there_are_no_more_documents_than_allowed(serve: Any) -> None:
    served = serve(documents=3)
    ids = served.add(*DOCUMENTS)
    assert served.send("POST", PATH, {"text": "one more"})[0] == 400
    served.send("DELETE", f"{PATH}/{ids[0]}")
    assert served.send("POST", PATH, {"text": ["two", "more"]})[0] == 400
    assert served.send("POST", PATH, {"text": "one more"})[0] == 201


@pytest.mark.parametrize(("name", "most", "status"), [("mine", 2, 409), (None, 1, 400)], ids=["one id", "one place"])
def test_of_two_who_want_what_one_can_have_the_second_is_refused(
    serve: Any, name: str | None, most: int, status: int
) -> None:
    """Both were let in, before either was kept."""
    served = serve(documents=most)
    documents = served.service.documents
    compute = documents.compute

    def overtaken(text: str) -> Any:
        made, work = compute(text)
        documents.keep([replace(made, id="mine")])
        return made, work

    documents.compute = overtaken
    assert served.send("POST", PATH, {"text": DOCUMENTS[0], "id": name})[0] == status
    assert list(documents.by_id) == ["mine"]


def test_the_units_of_a_document_are_told_in_the_order_of_its_text(serve: Any) -> None:
    served = serve()
    text = "".join(f"line {n} of it.\n" for n in range(9))
    long, short = served.add(text, "short.")
    status, found = served.send("GET", f"/v1/documents/{long}/units")
    units = found["data"]
    assert status == 200
    assert len(units) > 1
    assert "".join(unit["text"] for unit in units) == text
    described = served.send("GET", f"/v1/documents/{long}")[1]
    assert [unit["key"] for unit in units] == described["units"]
    assert sum(unit["tokens"] for unit in units) == described["tokens"] == len(text)
    (only,) = served.send("GET", f"/v1/documents/{short}/units")[1]["data"]
    assert (only["text"], only["tokens"]) == ("short.", 6)
    assert served.send("GET", "/v1/documents/nobody/units")[0] == 404


def test_a_change_says_how_many_units_stayed_as_they_were(serve: Any) -> None:
    served = serve()
    first, _ = served.add("one text.", "and another.")
    computed = served.send("PUT", f"/v1/documents/{first}", {"text": "one other."})[1]["computed"]
    assert (computed["units"], computed["others"], computed["changed"]) == (1, 2, 0)
    computed = served.send("POST", "/v1/documents", {"text": "and another."})[1]["computed"]
    assert (computed["units"], computed["others"], computed["changed"]) == (0, 2, 0)
