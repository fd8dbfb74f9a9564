"""``contentrope serve --replicas N``: the application run on Ray until a signal, and ended whole."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from contentrope.cluster import connected, is_remote
from contentrope.errors import BackendError, InputError
from contentrope.serving.deployment import NAME, application
from contentrope.serving.limits import Limits
from contentrope.serving.server import SIGNALS
from contentrope.serving.service import Settings

LOOK_EVERY = 1.0
"""Seconds between two looks at whether Ray is still there."""


class _EndedError(BaseException):
    """By a signal."""


def run_replicas(
    settings: Settings,
    limits: Limits,
    *,
    replicas: int,
    cpus: float,
    gpus: float,
    http: dict[str, Any],
    ready: Callable[[], None],
) -> None:
    """Returns when a signal has ended it. What has begun is finished, for as long as the limits say; a second signal
    ends it at once. ``cpus`` and ``gpus`` are those of each replica."""
    options = {
        "num_replicas": replicas,
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus},
        "max_constructor_retry_count": 1,  # what cannot be loaded is told at once; later replicas are tried on and on
    }
    with contextlib.suppress(_EndedError), connected(replicas * cpus, replicas * gpus), _ended_by_signals():
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        quiet = {"log_level": "WARNING", "enable_access_log": False}
        serve.start(http_options=http, proxy_location="HeadOnly", logging_config=quiet)
        if NAME in serve.status().applications:
            raise InputError(f"an application {NAME!r} runs on this cluster already; end it first: serve delete {NAME}")
        try:
            try:
                serve.run(application(settings, limits, **options), name=NAME, logging_config=quiet)
            except RuntimeError as error:
                told = serve.status().applications.get(NAME)
                messages = [str(error), *(one.message for one in (told.deployments.values() if told else ()))]
                raise BackendError(f"no replica could be started: {_reason(messages)}") from error
            ready()
            _wait()
        finally:
            serve.delete(NAME)  # waits for the replicas, which finish what they have begun
            if not is_remote():  # there others may have applications
                serve.shutdown()


def _wait() -> None:
    import ray

    while True:
        threading.Event().wait(LOOK_EVERY)
        if not ray.is_initialized():
            raise BackendError("Ray has ended")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The first raises where the program stands, also while Ray starts; so does a second, out of the clean end."""

    def end(*_: object) -> NoReturn:
        raise _EndedError

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reason(messages: list[str]) -> str:
    """The last error of all that Ray tells, tracebacks among it."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w+(Error|Exception): ", line)]
    return (errors or lines)[-1]
