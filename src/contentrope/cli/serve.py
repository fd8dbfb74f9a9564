"""``contentrope serve``: a converted model and a store of documents, as an OpenAI-compatible service."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from contentrope.cli.generate import checkpoint_named
from contentrope.cli.options import Device, chosen_device, one, require_positive, require_share
from contentrope.cluster import require_ray
from contentrope.corpora import text_of
from contentrope.errors import BackendError, InputError
from contentrope.serving.limits import Limits

if TYPE_CHECKING:
    from contentrope.serving.service import Settings

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "jinja2")


@dataclass(frozen=True)
class Serve:
    """Answer questions about stored documents over HTTP, to any client of OpenAI's chat completions.

    Example: contentrope serve --model runs/smol --store runs/documents
    """

    model: Annotated[str, arg(metavar="MODEL_DIR")]
    """Folder of a converted model, as `contentrope finetune` writes it."""
    store: Annotated[str, arg(metavar="DIR")]
    """Folder of the store, or any fsspec address; made if it is not there."""
    precision: Literal["model", "int8"] = "model"
    """Numbers the store keeps: the model's own, or 8-bit ones, which take less room and change answers a little."""
    host: str = "127.0.0.1"
    """Address to listen at: the default is reached from this machine only, 0.0.0.0 from everywhere."""
    port: int = 8000
    """Port to listen at; 0 is any that is free."""
    api_key_file: Annotated[
        Path | None, one(Path, "PATH"), arg(help_behavior_hint="(default: CONTENTROPE_API_KEY, if it is set)")
    ] = None
    """File with the key that clients must send."""
    name: Annotated[str | None, one(str, "TEXT"), arg(help_behavior_hint="(default: the folder's)")] = None
    """What clients call the model."""
    chat_template: Annotated[
        Path | None, one(Path, "PATH"), arg(help_behavior_hint="(default: the tokenizer's own)")
    ] = None
    """File with a template in Jinja that makes a prompt of messages."""
    batch_size: int = Limits.rows
    """Requests that are decoded together."""
    queue: int = Limits.queue
    """Requests that may wait; more are refused at once."""
    timeout: float = Limits.timeout
    """Seconds for a request, its time in the queue among them."""
    max_tokens: int = Limits.new_tokens
    """Tokens of an answer."""
    max_context: int = Limits.context
    """Tokens of documents, messages and answer together."""
    max_body: int = Limits.body // 2**20
    """Size of a request in MiB."""
    max_documents: int = Limits.documents
    """Documents that are kept."""
    cache: float = Limits.cache / 2**30
    """Memory for the keys and values of documents that were asked about, in GiB."""
    device: Device = None
    """Where to compute."""
    replicas: int = 1
    """Engines that share the store and the requests; more than one run on Ray, on a cluster of this machine or the one
    that RAY_ADDRESS names."""
    replica_cpus: Annotated[
        float | None, one(float, "FLOAT"), arg(help_behavior_hint="(default: the cores of this machine, shared)")
    ] = None
    """CPU cores of each replica."""
    replica_gpus: Annotated[
        float | None, one(float, "FLOAT"), arg(help_behavior_hint="(default: 1 if it computes on one)")
    ] = None
    """GPUs of each replica; 0.5 lets two share one."""

    def run(self) -> None:
        missing = [package for package in NEEDED if find_spec(package) is None]
        if missing:
            raise BackendError(f"contentrope serve needs {', '.join(missing)}: pip install contentrope[serve,hf]")
        from contentrope.hf.plain import require_transformers

        require_transformers()
        self._serve(self._key())

    def _serve(self, key: str | None) -> None:
        from contentrope.serving.server import LOOPBACK_NAMES, address_of, is_loopback, listen
        from contentrope.serving.service import Settings

        require_positive(replicas=self.replicas)
        require_share(replica_cpus=self.replica_cpus, replica_gpus=self.replica_gpus)
        if not 0 <= self.port < 2**16:
            raise InputError(f"port must be from 0 to 65535, got {self.port}")
        limits = Limits(
            queue=self.queue,
            rows=self.batch_size,
            timeout=self.timeout,
            new_tokens=self.max_tokens,
            context=self.max_context,
            body=self.max_body * 2**20,
            documents=self.max_documents,
            cache=self.cache * 2**30,
        )
        folder = checkpoint_named(self.model)
        if folder is None or not Path(self.model).is_dir():
            raise InputError(f"there is no model in {self.model!r}; name the folder of a converted one")
        template = None if self.chat_template is None else text_of(self.chat_template)
        device = chosen_device(self.device)
        with listen(self.host, self.port) as sock:
            own = is_loopback(sock)
            settings = Settings(
                model=folder,
                store=self.store,
                precision=self.precision,
                name=self.name or Path(self.model).resolve().name,
                key=key,
                hosts=LOOPBACK_NAMES if own else None,
                device=device,
                template=template,
            )
            say_who_may_ask(address_of(sock), own, key)
            (_serve_alone if self.replicas == 1 else self._serve_replicas)(settings, limits, sock)
        print("stopped", flush=True)

    def _serve_replicas(self, settings: Settings, limits: Limits, sock: socket.socket) -> None:
        require_ray("contentrope serve --replicas")
        from contentrope.serving.replicas import run_replicas
        from contentrope.serving.server import address_of
        from contentrope.serving.service import require_converted

        require_converted(settings.model)
        address, on_gpu = address_of(sock), settings.device.startswith("cuda")
        host, port = sock.getsockname()[:2]
        sock.close()  # Ray listens there now
        run_replicas(
            replace(
                settings,
                model=str(Path(settings.model).resolve()),
                store=settings.store if "://" in settings.store else str(Path(settings.store).resolve()),
                device="cuda" if on_gpu else settings.device,  # Ray chooses which
            ),
            limits,
            replicas=self.replicas,
            cpus=max(1, (os.cpu_count() or 1) // self.replicas) if self.replica_cpus is None else self.replica_cpus,
            gpus=float(on_gpu) if self.replica_gpus is None else self.replica_gpus,
            http={"host": host, "port": port},
            ready=lambda: print(f"ready: {settings.name} at {address}/v1, {self.replicas} replicas", flush=True),
        )

    def _key(self) -> str | None:
        from contentrope.serving.service import KEY_IN, checked_key

        if self.api_key_file is not None:
            return checked_key(text_of(self.api_key_file), str(self.api_key_file))
        return checked_key(os.environ[KEY_IN], KEY_IN) if KEY_IN in os.environ else None


def _serve_alone(settings: Settings, limits: Limits, sock: socket.socket) -> None:
    import asyncio

    from contentrope.serving.server import Server, address_of
    from contentrope.serving.service import Service

    service = Service(settings, limits)

    def ready() -> None:
        documents = service.documents
        if damaged := documents.files.damaged:
            print(f"warning: {len(damaged)} documents are damaged: {', '.join(sorted(damaged)[:4])}", file=sys.stderr)
        print(f"ready: {settings.name} at {address_of(sock)}/v1, with {len(documents.by_id)} documents", flush=True)

    asyncio.run(Server(service, ready=ready).serve([sock]))


def say_who_may_ask(address: str, own: bool, key: str | None) -> None:
    if own:
        return
    print(f"note: {address} can be reached from other machines", file=sys.stderr)
    if key is None:
        from contentrope.serving.service import KEY_IN

        print(
            f"warning: there is no API key, so whoever reaches it may read and change all documents; pass "
            f"--api-key-file, or set {KEY_IN}",
            file=sys.stderr,
        )
