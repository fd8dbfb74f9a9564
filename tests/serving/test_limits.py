"""Too much is refused, too long is ended, and who goes leaves the place to others."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from contentrope.errors import InputError
from contentrope.serving.service import checked_key
from tests.serving.served import DOCUMENTS, PATIENCE, Held, Served, eventually, texts_of

CHAT = "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "what is blue?"}]
ASKED = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 8}


def leave_early(served: Served, body: dict[str, Any], held: Held) -> None:
    """A client that sends a request, waits until it is being answered, and goes."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE)
    connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
    held.wait()
    connection.sock.close()
    connection.close()


def test_a_full_queue_refuses_at_once_and_loses_nobody(serve: Any) -> None:
    served = serve(queue=2, batches=1, rows=1)
    alone = served.ask()
    with ThreadPoolExecutor(3) as pool, Held(served) as held:
        first = pool.submit(served.ask)
        held.wait()
        others = [pool.submit(served.ask) for _ in range(2)]
        eventually(lambda: served.service.engine.queue_length == 2)
        assert served.metric("queue_length") == 2
        with served.client() as client, pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**ASKED)
        assert int(refused.value.response.headers["retry-after"]) > 0
        held.release()
        assert [one.result(PATIENCE) for one in (first, *others)] == [alone] * 3
    assert served.ask() == alone


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_goes_ends_its_answer(serve: Any, stream: bool) -> None:
    served = serve()
    before, engine = served.ask(), served.service.engine
    taken, submit = [], engine.submit
    engine.submit = lambda request: (taken.append(request), submit(request))
    with Held(served, free=2) as held:
        leave_early(served, {**ASKED, "stream": stream}, held)
        eventually(lambda: taken[0].ended)
        held.release()
        eventually(lambda: engine.is_idle)
    assert held.calls == 3 < len(before)
    assert served.ask() == before
    eventually(lambda: served.metric("running_requests") == 0)


def test_a_client_that_goes_leaves_the_queue(serve: Any) -> None:
    served = serve(queue=1, batches=1, rows=1)
    with ThreadPoolExecutor(2) as pool, Held(served) as held:
        first = pool.submit(served.ask)
        held.wait()
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE)
        connection.request("POST", CHAT, json.dumps(ASKED), {"Content-Type": "application/json"})
        eventually(lambda: served.service.engine.queue_length == 1)
        connection.sock.close()
        connection.close()
        eventually(lambda: served.service.engine.queue_length == 0)
        other = pool.submit(served.ask)
        eventually(lambda: served.service.engine.queue_length == 1)
        held.release()
        assert first.result(PATIENCE) == other.result(PATIENCE)


def test_what_takes_too_long_is_ended_and_the_service_goes_on(serve: Any) -> None:
    served = serve(timeout=1.0)
    before = served.ask()
    with Held(served) as held:
        status, found = served.send("POST", CHAT, ASKED)
        assert (status, found["error"]["code"]) == (504, "timeout")
        with served.client() as client, pytest.raises(openai.InternalServerError):
            client.chat.completions.create(**ASKED, stream=True)
        assert served.send("POST", "/v1/documents", {"text": "a text"})[0] == 504
        held.release()
        eventually(lambda: served.service.engine.is_idle)
    assert served.ask() == before


def test_a_stream_that_takes_too_long_ends_with_an_error(serve: Any) -> None:
    served = serve(timeout=1.0)
    heard: list[str] = []
    with Held(served, free=2), served.client() as client:
        stream = client.chat.completions.create(**ASKED, stream=True)
        with pytest.raises(openai.APIError) as error:
            texts_of(stream, heard)
    assert len(heard) == 3  # the role, and two tokens
    assert error.value.code == "timeout"


def test_what_is_too_large_is_refused(serve: Any) -> None:
    served = serve(body=2000, messages=3, context=60, new_tokens=50)
    before = served.ask(max_tokens=2)
    assert served.send("POST", CHAT, {**ASKED, "user": "x" * 3000})[0] == 413
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as unannounced:
        unannounced.sendall(f"{head}\r\n\r\n".encode() + b"1f4\r\n%s\r\n" % (b"x" * 500) * 5 + b"0\r\n\r\n")
        assert unannounced.recv(100).startswith(b"HTTP/1.1 413 ")
    assert served.send("POST", CHAT, {**ASKED, "messages": MESSAGES * 4})[0] == 400
    assert served.send("POST", CHAT, {**ASKED, "max_tokens": 51})[0] == 400
    long = [{"role": "user", "content": "x" * 60}]
    assert served.send("POST", CHAT, {**ASKED, "messages": long})[1]["error"]["code"] == "context_length_exceeded"
    served.add(*DOCUMENTS)
    assert served.send("POST", CHAT, ASKED)[1]["error"]["code"] == "context_length_exceeded"
    none: Any = {"documents": []}
    assert served.ask(max_tokens=2, extra_body=none) == before


def test_the_state_is_told_while_the_model_is_loaded_and_while_the_service_ends(serve: Any, model_folder: Path) -> None:
    from contentrope.hf.loading import load_any

    go_on = threading.Event()

    def load() -> Any:
        assert go_on.wait(PATIENCE)
        return load_any(str(model_folder))

    served = serve(load=load)
    eventually(lambda: served.send("GET", "/health") == (503, {"status": "loading"}))
    status, found = served.send("POST", CHAT, ASKED)
    assert (status, found["error"]["type"]) == (503, "server_error")
    go_on.set()
    eventually(lambda: served.send("GET", "/health") == (200, {"status": "ready"}))
    with ThreadPoolExecutor(1) as pool, Held(served) as held:
        before = pool.submit(served.ask)
        held.wait()
        served.begin_to_end()
        eventually(lambda: served.send("GET", "/health") == (503, {"status": "draining"}))
        assert served.send("POST", CHAT, ASKED)[0] == 503
        held.release()
        assert before.result(PATIENCE) is not None
    served.end()
    assert served.failure is None


def test_what_does_not_end_in_time_is_told_so(serve: Any) -> None:
    served = serve(drain=0.2, batches=1, rows=1)
    with ThreadPoolExecutor(2) as pool, Held(served) as held:
        found = [pool.submit(served.send, "POST", CHAT, ASKED)]
        held.wait()
        found.append(pool.submit(served.send, "POST", CHAT, ASKED))
        eventually(lambda: served.service.engine.queue_length == 1)
        served.begin_to_end()
        eventually(lambda: served.service.engine.state == "stopped")
        held.release()
        assert sorted(one.result(PATIENCE)[0] for one in found) == [503, 503]


def test_a_model_that_cannot_be_loaded_ends_the_service(model_folder: Path, tmp_path: Path) -> None:
    def load() -> Any:
        raise InputError("no such model")

    served = Served(model_folder, tmp_path, load=load)
    eventually(lambda: served.failure is not None)
    served.end()
    assert str(served.failure) == "no such model"


def test_metrics_move(serve: Any) -> None:
    served = serve()
    before = served.metric("store_bytes")
    served.add(*DOCUMENTS)
    with served.client() as client:
        usage = client.chat.completions.create(**ASKED).usage
    assert served.metric("documents") == len(DOCUMENTS)
    assert served.metric("store_bytes") > before
    assert served.metric("tokens_total", kind="answer") == usage.completion_tokens
    assert served.metric("tokens_total", kind="document") == sum(map(len, DOCUMENTS))
    assert served.metric("first_token_seconds_count") == served.metric("batch_rows_count") == 1
    eventually(lambda: served.metric("request_seconds_count", path=CHAT) == 1)  # counted behind the answer
    assert served.metric("requests_total", path=CHAT, method="POST", status="200") == 1
    assert served.send("GET", "/none")[0] == 404
    eventually(lambda: served.metric("requests_total", path="other", method="GET", status="404") == 1)
    assert b"contentrope_queue_length 0.0" in served.send("GET", "/metrics")[1]


@pytest.mark.parametrize("text", ["", "\n", "two words\n", "clé", "a\0b"])
def test_what_cannot_be_a_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InputError) as refused:
        checked_key(text, "the file")
    assert not text.strip() or text.strip() not in str(refused.value)
