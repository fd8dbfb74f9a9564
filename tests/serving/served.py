"""A tiny converted model with a chat template, a service in a thread of the test, and one in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openai
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import contentrope.hf as chf
from contentrope.hf.characters import character_tokenizer
from contentrope.serving.limits import Limits
from contentrope.serving.server import LOOPBACK_NAMES, Server, address_of, listen
from contentrope.serving.service import Service, Settings
from tests.hf.models import enliven

LETTERS = "abcdefghijklmnopqrstuvwxyz .:?#\n0123456789$"
END = "$"
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
DOCUMENTS = ["the sky is blue\nand wide.", "grass is green.\n", "seven 7 swans\nswim in 3 rows.\n"]
PATIENCE = 60.0


def save_model(folder: Path) -> Path:
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATE, END
    config = LlamaConfig(
        vocab_size=64,  # more than there are characters
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=1.2 / weight.shape[-1] ** 0.5)
        model.lm_head.weight.mul_(2.0)
        model.lm_head.weight[tokenizer.eos_token_id].mul_(0.5)
        model.get_input_embeddings().weight.normal_()
    chf.attach(model, tokenizer, units="line", window=24, max_length=48, competition=0.7, check=False)
    chf.save_pretrained(enliven(model), folder, tokenizer)
    return folder


class Served:
    """A service in a thread, and ways to ask it."""

    def __init__(
        self,
        model: Path,
        store: Path,
        *,
        key: str | None = None,
        load: Any = None,
        hosts: Any = LOOPBACK_NAMES,
        **limits: Any,
    ) -> None:
        settings = Settings(model=str(model), store=str(store), name="tiny", key=key, hosts=hosts)
        self.service = Service(settings, Limits(**limits), load)
        self.socket = listen("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.base = address_of(self.socket)
        self._loaded = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        if load is None:
            assert self._loaded.wait(PATIENCE), self.failure

    def _run(self) -> None:
        async def main() -> None:
            self._server = Server(self.service, ready=self._loaded.set)
            self._loop = asyncio.get_running_loop()
            await self._server.serve([self.socket])

        try:
            asyncio.run(main())
        except BaseException as error:
            self.failure = error
            self._loaded.set()

    def begin_to_end(self) -> None:
        self._loop.call_soon_threadsafe(self._server.end)

    def end(self) -> None:
        if self._thread.is_alive():
            self.begin_to_end()
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        options = {"timeout": PATIENCE, "max_retries": 0, **options}
        return openai.OpenAI(base_url=f"{self.base}/v1", api_key=key, **options)

    def ask(self, text: str = "what is blue?", **options: Any) -> str:
        with self.client() as client:
            return answer_of(client, text, **options)

    def send(self, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, Any]:
        return send(self.port, method, path, body, headers)

    def add(self, *texts: str) -> list[str]:
        status, found = self.send("POST", "/v1/documents", {"text": list(texts)})
        assert status == 201, found
        return [one["id"] for one in found["data"]]

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(f"contentrope_{name}", labels) or 0.0


def answer_of(client: openai.OpenAI, text: str, **options: Any) -> str:
    options = {"max_tokens": 8, "temperature": 0, **options}
    message: Any = [{"role": "user", "content": text}]
    found = client.chat.completions.create(model="tiny", messages=message, **options)
    return str(found.choices[0].message.content)


def send(port: int, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, Any]:
    """Status and body; text and bytes are sent as they are, all else as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    data = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
    try:
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        found = response.read()
    finally:
        connection.close()
    return response.status, json.loads(found) if "json" in response.headers.get("content-type", "") else found


class Process:
    """``contentrope serve`` as a user starts it."""

    def __init__(self, model: Path, store: Path, *words: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "contentrope", "serve", "--model", str(model), "--store", str(store)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--device", "cpu", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("ready: "):
                self.port = int(line.partition("://")[2].partition(":")[2].partition("/")[0])
                break

    def listen(self) -> None:
        """To what else it says, so that it need not wait for a reader."""
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            self.lines += self.process.stdout

    def client(self) -> openai.OpenAI:
        base = f"http://127.0.0.1:{self.port}/v1"
        return openai.OpenAI(base_url=base, api_key="none", timeout=PATIENCE, max_retries=0)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        out, _ = self.process.communicate(timeout=PATIENCE)
        self.lines += out.splitlines()
        return self.process.returncode


class Held:
    """Holds the model of a service before its next token, and lets it go: nothing is left to luck."""

    def __init__(self, served: Served, free: int = 0) -> None:
        """``free``: how often the model answers before it is held."""
        self.calls, self.free = 0, free
        self.speaker, self.own = served.service.engine.speaker, served.service.engine.speaker.logits
        self.arrived, self.go_on = threading.Semaphore(0), threading.Event()

    def __enter__(self) -> Held:
        def waiting(*args: Any) -> torch.Tensor:
            self.calls += 1
            if self.calls > self.free:
                self.arrived.release()
                assert self.go_on.wait(PATIENCE)
            return self.own(*args)

        self.speaker.logits = waiting  # type: ignore[method-assign]
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
        self.speaker.logits = self.own  # type: ignore[method-assign]

    def wait(self) -> None:
        """Until the model is asked for a token."""
        assert self.arrived.acquire(timeout=PATIENCE)

    def release(self) -> None:
        self.go_on.set()


def texts_of(stream: Iterable[Any], heard: list[str]) -> None:
    """What a stream says, also if it ends with an error."""
    for chunk in stream:
        heard.append(chunk.choices[0].delta.content)


def eventually(holds: Any) -> None:
    """Asserts what another thread is about to bring about."""
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)
