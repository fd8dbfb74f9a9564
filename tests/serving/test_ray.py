"""Two replicas on Ray, as a user starts them: one is killed under load, and no answer is lost or mixed up."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from contentrope.hf.loading import load_any
from contentrope.store import NamedDocuments, UnitStore
from contentrope.store.indexing import add_files
from contentrope.store.text_files import find_texts
from tests.serving.served import DOCUMENTS, PATIENCE, Process, Served, answer_of, eventually, send

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray"),
]
PATH = "/v1/documents"
SLOW_START = 180.0
"""Seconds for what takes ten when nothing else runs."""
QUESTIONS = ["what is blue?", "who swims?", "is grass green?", "seven?"]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Everything that Ray writes lies in a folder of its own. Names of sockets in it must be short."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        source = str(Path(__file__).resolve().parents[2] / "src")
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        yield {"RAY_TMPDIR": folder, "HOME": folder, "PYTHONPATH": path, "RAY_ADDRESS": ""}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"text {number} of many.\n" * (1 + number % 7))
    return folder


class Replicas(Process):
    """``contentrope serve --replicas 2``, and the processes of its replicas."""

    def pids(self) -> set[int]:
        return {pid for pid in descendants(self.process.pid) if b"ServeReplica" in command_of(pid)}

    def of_both(self, path: str) -> dict[str, bytes]:
        """By replica, what its very first answer is when it is asked until both have answered."""
        found: dict[str, bytes] = {}
        ends = time.monotonic() + SLOW_START
        while time.monotonic() < ends:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            with contextlib.closing(connection):
                connection.request("GET", path)
                response = connection.getresponse()
                found.setdefault(response.headers["x-contentrope-replica"], response.read())
            if len(found) == 2:
                return found
            time.sleep(0.01)
        raise AssertionError(f"only {sorted(found)} answers")

    def metric(self, name: str) -> float:
        """The sum over both."""
        return sum(
            float(line.split()[-1])
            for text in self.of_both("/metrics").values()
            for line in text.decode().splitlines()
            if line.startswith(f"contentrope_{name}")
        )


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def descendants(pid: int) -> set[int]:
    children: set[int] = set()
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            children |= set(map(int, path.read_text().split()))
    return children.union(*map(descendants, children))


@pytest.fixture(scope="module")
def replicas(
    model_folder: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    store = tmp_path_factory.mktemp("ray") / "store"
    words = ["--replicas", "2", "--replica-cpus", "1", "--max-body", "1"]
    running = Replicas(model_folder, store, *words, env=environment)
    assert hasattr(running, "port"), running.lines
    listening = threading.Thread(target=running.listen)
    listening.start()
    all_of_it = descendants(running.process.pid)
    assert running.pids() <= all_of_it
    yield running
    all_of_it |= descendants(running.process.pid)
    running.process.terminate()
    try:
        running.process.wait(SLOW_START)
    finally:
        running.process.kill()
        running.process.wait(PATIENCE)
        listening.join(PATIENCE)
        assert running.process.stdout is not None
        running.process.stdout.close()
    eventually(lambda: not any(b"ray" in command_of(pid) for pid in all_of_it))


@pytest.fixture(scope="module")
def expected(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    """What a service of one process answers, by question and document."""
    served = Served(model_folder, tmp_path_factory.mktemp("alone") / "store")
    ids = served.add(*DOCUMENTS)
    found = {
        (question, number): served.ask(question, max_tokens=24, extra_body={"documents": [document]})
        for question in QUESTIONS
        for number, document in enumerate(ids)
    }
    served.end()
    assert len(set(found.values())) > len(DOCUMENTS), "answers that are all the same could not be mixed up"
    return found


def eventually_slow(holds: Any) -> None:
    ends = time.monotonic() + SLOW_START
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_both_replicas_have_what_one_was_told_and_lose_nothing_when_one_is_killed(
    replicas: Replicas, expected: dict[tuple[str, int], str]
) -> None:
    status, added = send(replicas.port, "POST", PATH, {"text": DOCUMENTS})
    assert status == 201
    ids = [one["id"] for one in added["data"]]
    seen = replicas.of_both(PATH)
    assert [[one["id"] for one in json.loads(found)["data"]] for found in seen.values()] == [ids, ids]
    before = replicas.pids()
    assert len(before) == 2
    victim, killed = sorted(before)[0], threading.Event()
    answered: list[tuple[str, int, str]] = []

    def ask(number: int) -> None:
        question, document = QUESTIONS[number % len(QUESTIONS)], number % len(DOCUMENTS)
        base = f"http://127.0.0.1:{replicas.port}/v1"
        # The requests that the dead replica had begun fail, and are sent again by the client.
        with openai.OpenAI(base_url=base, api_key="none", timeout=PATIENCE, max_retries=8) as client:
            answer = answer_of(client, question, max_tokens=24, extra_body={"documents": [ids[document]]})
        answered.append((question, document, answer))
        if len(answered) == 30:
            os.kill(victim, signal.SIGKILL)
            killed.set()

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(ask, range(120)))
    assert killed.is_set()
    assert len(answered) == 120
    assert all(expected[question, document] == answer for question, document, answer in answered)
    eventually_slow(lambda: len(replicas.pids() - {victim}) == 2)
    fresh = replicas.of_both(PATH)
    assert len(fresh.keys() - seen.keys()) == 1, "one is new, and one has lived on"
    assert [[one["id"] for one in json.loads(found)["data"]] for found in fresh.values()] == [ids, ids]


def streamed(client: openai.OpenAI, tokens: int) -> Any:
    message: Any = [{"role": "user", "content": "what is blue?"}]
    return client.chat.completions.create(model="tiny", messages=message, max_tokens=tokens, temperature=0, stream=True)


def test_a_stream_arrives_token_by_token_and_says_what_a_whole_answer_says(replicas: Replicas) -> None:
    with replicas.client() as client:
        whole = answer_of(client, "what is blue?", max_tokens=24)
        chunks = list(streamed(client, 24))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert len(chunks) > 10


def test_a_client_that_goes_ends_its_answer(replicas: Replicas) -> None:
    before = replicas.metric('tokens_total{kind="answer"}')
    with replicas.client() as client:
        stream = streamed(client, 2000)
        next(iter(stream))
        stream.close()
    eventually(lambda: replicas.metric("running_requests") == 0)
    assert replicas.metric('tokens_total{kind="answer"}') == before, "only finished answers are counted"


def test_the_gate_and_the_limits_hold_behind_the_proxy(replicas: Replicas) -> None:
    port = replicas.port
    assert send(port, "GET", PATH, headers={"Host": "evil.example"})[0] == 403
    assert send(port, "POST", PATH, {"text": "x" * 2**21})[0] == 413
    assert send(port, "POST", PATH, "text", headers={"Content-Type": "text/plain"})[0] == 415
    assert send(port, "GET", f"{PATH}/none")[1]["error"]["code"] == "document_not_found"


def test_sigterm_lets_it_finish_what_has_begun_and_ends_all_of_it(replicas: Replicas) -> None:
    with replicas.client() as client:
        stream = iter(streamed(client, 500))
        first = next(stream)
        replicas.process.send_signal(signal.SIGTERM)
        chunks = [first, *stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert replicas.process.wait(SLOW_START) == 0


def test_workers_compute_the_same_bytes_as_one_process(
    model_folder: Path, texts: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    words = ["--model", str(model_folder), "--text", str(texts), "--store", str(tmp_path / "shared")]
    done = subprocess.run(
        [sys.executable, "-m", "contentrope", "index", *words, "--device", "cpu", "--workers", "2"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SLOW_START,
    )
    assert done.returncode == 0, done.stderr
    assert "40 documents added" in done.stdout
    loaded = load_any(str(model_folder))
    alone, shared = (NamedDocuments(UnitStore(tmp_path / store, *loaded)) for store in ("alone", "shared"))
    add_files(alone, find_texts([texts]).files)
    assert {one.id: one.text for one in alone.by_id.values()} == {one.id: one.text for one in shared.by_id.values()}
    units = sorted({unit for one in alone.by_id.values() for unit in one.units})
    pieces, others = alone.store.read(units), shared.store.read(units)
    assert all(pieces[unit].digest() == others[unit].digest() for unit in units)
    assert len(list((tmp_path / "shared" / "units").iterdir())) > 1
