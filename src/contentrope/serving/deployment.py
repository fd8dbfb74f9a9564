"""The service as an application of Ray Serve: the same ASGI app in several replicas, which share one store.

Ray starts the replicas, hands out requests, and replaces a replica whose engine has ended. :func:`app` is what a config
file of Ray Serve names; ``contentrope serve --replicas N`` uses it too.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contentrope.corpora import text_of
from contentrope.errors import BackendError, InputError, quoted
from contentrope.serving.app import create_app
from contentrope.serving.engine import STOPPED
from contentrope.serving.limits import Limits
from contentrope.serving.server import LOOK_EVERY, LOOPBACK_NAMES
from contentrope.serving.service import KEY_IN, Service, Settings, checked_key, require_converted

NAME = "contentrope"
"""Of the application and of its deployment."""
REPLICA = b"x-contentrope-replica"
"""Header that says which replica has answered."""
HEALTH_EVERY = 5.0
ARGUMENTS = ("model", "store", "name", "hosts", "device", "precision", "chat_template", "api_key_file", "limits")


class Replica:
    """One engine and its HTTP side. Ray calls the methods by their names."""

    async def __init__(self, settings: Settings, limits: Limits) -> None:  # type: ignore[misc]
        """Returns once the model is loaded: until then Ray sends nothing."""
        logging.getLogger("contentrope").setLevel(logging.WARNING)
        self.service = Service(settings, limits)
        engine = self.service.engine
        engine.start()
        while engine.loaded is None and engine.failure is None:
            await asyncio.sleep(LOOK_EVERY)
        if engine.failure is not None:
            raise engine.failure

    def __serve_build_asgi_app__(self) -> ASGIApp:
        from ray import serve

        return Signed(create_app(self.service), serve.get_replica_context().replica_id.unique_id)

    def check_health(self) -> None:
        engine = self.service.engine
        if engine.failure is not None or engine.state == STOPPED:
            raise BackendError(f"the engine has ended: {engine.failure}")

    def __del__(self) -> None:
        """After the last request; Ray has waited for those that had begun."""
        if hasattr(self, "service"):
            self.service.engine.stop()


class Signed:
    """Says in every answer which replica gives it."""

    def __init__(self, app: ASGIApp, replica: str) -> None:
        self.app, self.replica = app, replica.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (REPLICA, self.replica)]}
            await send(message)

        await self.app(scope, receive, signed)


def application(settings: Settings, limits: Limits, **options: Any) -> Any:
    """A Ray Serve application. ``options`` are those of a deployment: ``num_replicas``, ``ray_actor_options``,
    ``autoscaling_config``, ..."""
    from ray import serve

    taken = limits.queue + limits.rows * limits.batches
    deployment: Any = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        **{
            # A replica refuses what is too much itself, with 429, and tells of it in its metrics; so Ray must not hold
            # requests back before that. Documents come on top.
            "max_ongoing_requests": 2 * taken,
            "graceful_shutdown_timeout_s": limits.drain,
            "graceful_shutdown_wait_loop_s": 0.2,
            "health_check_period_s": HEALTH_EVERY,
            "max_constructor_retry_count": 3,
            **options,
        },
    )
    return deployment.bind(settings, limits)


def app(args: Mapping[str, Any]) -> Any:
    """The application that a Serve config file describes: ``import_path: contentrope.serving.deployment:app``.

    ``args``: ``model`` and ``store``, and as with ``contentrope serve`` ``name``, ``device``, ``precision``,
    ``chat_template``, ``api_key_file`` (or the variable CONTENTROPE_API_KEY); ``limits`` by the names of
    :class:`Limits`; ``hosts``, the names by which clients may call the service, or "any". Without it only loopback
    names are answered.
    """
    unknown = sorted(set(args) - set(ARGUMENTS))
    if unknown or not {"model", "store"} <= set(args):
        raise InputError(f"args: give model and store, and of {', '.join(ARGUMENTS[2:])} what you need; got {unknown}")
    hosts = args.get("hosts", LOOPBACK_NAMES)
    if hosts != "any" and (isinstance(hosts, str) or not all(isinstance(one, str) for one in hosts)):
        raise InputError(f'hosts is {quoted(hosts)}: give a list of names, or "any"')
    file, template = args.get("api_key_file"), args.get("chat_template")
    key = os.environ.get(KEY_IN) if file is None else text_of(Path(file))
    require_converted(args["model"])
    settings = Settings(
        model=args["model"],
        store=args["store"],
        name=args.get("name") or Path(args["model"]).resolve().name,
        key=None if key is None else checked_key(key, KEY_IN if file is None else file),
        hosts=None if hosts == "any" else tuple(hosts),
        device=args.get("device", "cpu"),
        precision=args.get("precision", "model"),
        template=None if template is None else text_of(Path(template)),
    )
    try:
        limits = Limits(**args.get("limits", {}))
    except TypeError as error:
        raise InputError(f"limits: {error}") from None
    return application(settings, limits)
