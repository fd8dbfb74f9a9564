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

    def replica_of(self, path: str = "/health") -> str | None:
        """Which replica answers this time."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.headers.get("x-contentrope-replica")


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
    threading.Thread(target=running.listen, daemon=True).start()
    all_of_it = descendants(running.process.pid)
    assert running.pids() <= all_of_it
    yield running
    all_of_it |= descendants(running.process.pid)
    running.process.send_signal(signal.SIGTERM)
    try:
        assert running.process.wait(SLOW_START) == 0
    finally:
        running.process.kill()
        running.process.wait(PATIENCE)
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
    seen = set()
    while len(seen) < 2:  # both have answered, and each has all of them: its very first answer too
        found = send_signed(replicas.port, "GET", PATH)
        assert [one["id"] for one in found[1]["data"]] == ids
        seen.add(found[0])
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
    fresh = set()
    while len(fresh) < 2:
        fresh.add(send_signed(replicas.port, "GET", PATH)[0])
    assert len(fresh - seen) == 1, "one is new, and one has lived on"


def send_signed(port: int, method: str, path: str) -> tuple[str | None, Any]:
    """Which replica has answered, and what."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        return response.headers["x-contentrope-replica"], json.loads(response.read())


def test_a_stream_arrives_token_by_token_and_says_what_a_whole_answer_says(replicas: Replicas) -> None:
    with replicas.client() as client:
        whole = answer_of(client, "what is blue?", max_tokens=24)
        message: Any = [{"role": "user", "content": "what is blue?"}]
        chunks = list(
            client.chat.completions.create(model="tiny", messages=message, max_tokens=24, temperature=0, stream=True)
        )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert len(chunks) > 10


def test_the_gate_and_the_limits_hold_behind_the_proxy(replicas: Replicas) -> None:
    port = replicas.port
    assert send(port, "GET", PATH, headers={"Host": "evil.example"})[0] == 403
    assert send(port, "POST", PATH, {"text": "x" * 2**21})[0] == 413
    assert send(port, "POST", PATH, "text", headers={"Content-Type": "text/plain"})[0] == 415
    assert send(port, "GET", f"{PATH}/none")[1]["error"]["code"] == "document_not_found"


def test_workers_compute_the_same_bytes_as_one_process(
    model_folder: Path, texts: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "contentrope", "index", "--model", str(model_folder), "--text", str(texts)]
    for store, more in (("alone", []), ("shared", ["--workers", "2"])):
        command = [*words, "--store", str(tmp_path / store), "--device", "cpu", *more]
        env = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SLOW_START)
        assert done.returncode == 0, done.stderr
        assert "40 documents added" in done.stdout
    loaded = load_any(str(model_folder))
    alone, shared = (NamedDocuments(UnitStore(tmp_path / store, *loaded)) for store in ("alone", "shared"))
    assert {one.id: one.text for one in alone.by_id.values()} == {one.id: one.text for one in shared.by_id.values()}
    units = sorted({unit for one in alone.by_id.values() for unit in one.units})
    pieces, others = alone.store.read(units), shared.store.read(units)
    assert all(pieces[unit].digest() == others[unit].digest() for unit in units)
    assert len(list((tmp_path / "shared" / "units").iterdir())) > 1
