"""``contentrope serve`` as a process: started, killed, started again, and told to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from contentrope.cli import main
from contentrope.cli.serve import say_who_may_ask
from contentrope.errors import InputError
from contentrope.serving.server import is_loopback, listen
from tests.serving.served import DOCUMENTS, Process, answer_of, send


def test_a_killed_service_has_its_documents_when_it_is_started_again(model_folder: Path, tmp_path: Path) -> None:
    first = Process(model_folder, tmp_path / "store")
    try:
        status, _ = send(first.port, "POST", "/v1/documents", {"text": DOCUMENTS})
        assert status == 201
        listed = send(first.port, "GET", "/v1/documents")
        with first.client() as client:
            answer = answer_of(client, "what is blue?")
    finally:
        first.kill()
    key = tmp_path / "key"
    key.write_text("a-secret-key\n")
    again = Process(model_folder, tmp_path / "store", "--api-key-file", str(key))
    try:
        headers = {"Authorization": "Bearer a-secret-key"}
        assert send(again.port, "GET", "/v1/documents")[0] == 401
        assert send(again.port, "GET", "/v1/documents", headers=headers) == listed
        with again.client() as client:
            client.api_key = "a-secret-key"
            assert answer_of(client, "what is blue?") == answer
    finally:
        code = again.terminate()
    assert code == 0
    assert "a-secret-key" not in "".join(again.lines)


def test_what_cannot_be_served_is_refused_in_one_line(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {
        "no model": ["--model", str(tmp_path / "none"), "--store", str(tmp_path / "s")],
        "no converted model": ["--model", str(tmp_path), "--store", str(tmp_path / "s")],
        "no such port": ["--model", str(model_folder), "--store", str(tmp_path / "s"), "--port", "70000"],
        "no such address": ["--model", str(model_folder), "--store", str(tmp_path / "s"), "--host", "192.0.2.1"],
        "no queue": ["--model", str(model_folder), "--store", str(tmp_path / "s"), "--queue", "0"],
    }
    for case, words in refused.items():
        assert main(["serve", *words, "--device", "cpu"]) == 2, case
        assert capsys.readouterr().err.startswith("error: "), case
    assert not (tmp_path / "s").exists()


def test_a_store_of_another_model_is_refused(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "store.json").write_text('{"format": 1}')
    assert main(["serve", "--model", str(model_folder), "--store", str(store), "--port", "0", "--device", "cpu"]) == 2
    assert "of another model" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused_and_any_free_one_is_found() -> None:
    with listen("127.0.0.1", 0) as sock:
        assert is_loopback(sock)
        with pytest.raises(InputError):
            listen("127.0.0.1", sock.getsockname()[1])
    with listen("0.0.0.0", 0) as open_to_all:
        assert not is_loopback(open_to_all)


SAID = [(True, None, []), (False, "k", ["note"]), (False, None, ["note", "warning"])]


@pytest.mark.parametrize(("own", "key", "words"), SAID)
def test_who_may_ask_is_said(own: bool, key: str | None, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    say_who_may_ask("http://address", own, key)
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == words
