"""The events of one request on the event loop, and as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from contentrope.serving.engine import Engine
from contentrope.serving.refusals import Refused, late
from contentrope.serving.requests import Event, Request

LEFT = 499
"""The status of a client that has gone; it is counted, nobody reads it."""


class Listening:
    """To the events of a request, which ends with the last one, in time, or when its client goes."""

    def __init__(self, engine: Engine, receive: Receive, **asked: Any) -> None:
        loop = asyncio.get_running_loop()
        self.engine = engine
        self._events: asyncio.Queue[Event] = asyncio.Queue()

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, event)

        self.request = Request(**asked, hear=hear)
        engine.submit(self.request)
        self._watch = asyncio.create_task(self._notice_leaving(receive))

    async def next(self) -> Event:
        try:
            return await asyncio.wait_for(self._events.get(), self.seconds_left)
        except TimeoutError:
            return Event(error=late(self.engine.limits.timeout))

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.request.since + self.engine.limits.timeout - time.monotonic())

    def __enter__(self) -> Listening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._watch.cancel()
        self.engine.cancel(self.request)

    async def _notice_leaving(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._events.put_nowait(Event(error=Refused(LEFT, "the client has gone")))


class EventStream(Response):
    """Answers with ``lines`` as they come."""

    media_type = "text/event-stream"

    def __init__(self, listening: Listening, lines: AsyncIterator[str]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.listening, self.lines = listening, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.listening:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for line in self.lines:
                part = {"type": "http.response.body", "body": line.encode(), "more_body": True}
                # Who reads too slowly has no more time than others.
                await asyncio.wait_for(send(part), self.listening.seconds_left + 1)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def line_of(data: Mapping[str, Any] | str) -> str:
    """A server-sent event.

    >>> line_of({"a": 1})
    'data: {"a": 1}\\n\\n'
    """
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
