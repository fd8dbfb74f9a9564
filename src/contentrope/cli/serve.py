"""``contentrope serve``: a converted model and a store of documents, as an OpenAI-compatible service."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from contentrope.cli.generate import checkpoint_named
from contentrope.cli.options import Device, chosen_device, one
from contentrope.corpora import text_of
from contentrope.errors import BackendError, InputError
from contentrope.serving.limits import Limits

KEY_IN = "CONTENTROPE_API_KEY"
"""The environment variable that may hold the key of the service."""
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

    def run(self) -> None:
        missing = [package for package in NEEDED if find_spec(package) is None]
        if missing:
            raise BackendError(f"contentrope serve needs {', '.join(missing)}: pip install contentrope[serve,hf]")
        from contentrope.hf.plain import require_transformers

        require_transformers()
        self._serve(self._key())

    def _serve(self, key: str | None) -> None:
        import asyncio

        from contentrope.serving.server import LOOPBACK_NAMES, Server, address_of, is_loopback, listen
        from contentrope.serving.service import Service, Settings

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
            service = Service(settings, limits)

            def ready() -> None:
                count = len(service.documents.by_id)
                print(f"ready: {settings.name} at {address_of(sock)}/v1, with {count} documents", flush=True)

            asyncio.run(Server(service, ready=ready).serve([sock]))
        print("stopped", flush=True)

    def _key(self) -> str | None:
        from contentrope.serving.service import checked_key

        if self.api_key_file is not None:
            return checked_key(text_of(self.api_key_file), str(self.api_key_file))
        return checked_key(os.environ[KEY_IN], KEY_IN) if KEY_IN in os.environ else None


def say_who_may_ask(address: str, own: bool, key: str | None) -> None:
    if own:
        return
    print(f"note: {address} can be reached from other machines", file=sys.stderr)
    if key is None:
        print(
            f"warning: there is no API key, so whoever reaches it may read and change all documents; pass "
            f"--api-key-file, or set {KEY_IN}",
            file=sys.stderr,
        )
