"""What every HTTP request passes first: who may ask, by which name, and how much may be sent; and what is counted."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contentrope.serving.page import is_page
from contentrope.serving.refusals import Refused
from contentrope.serving.service import Service

OPEN = "/health"
"""Needs no key, like the page: nothing is to be learned there."""
JSON = "application/json"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SLOWEST_BODY = 60.0
"""Seconds in which a request must have arrived whole."""


def answer(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in ASCII: whatever text there is, it can be sent."""
    return Response(json.dumps(body), status, headers, JSON)


def refusal(refused: Refused) -> Response:
    return answer(refused.body(), refused.status_code, refused.headers)


class Gate:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._passed(scope, receive, noting)
        finally:
            self._count(scope, status, time.monotonic() - began)

    async def _passed(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(Headers(scope=scope), scope["method"], scope["path"])
        except Refused as refused:
            await refusal(refused)(scope, receive, send)
        else:
            await self.app(scope, Body(receive, self.service.limits.body), send)

    def _check(self, headers: Headers, method: str, path: str) -> None:
        settings, limit = self.service.settings, self.service.limits.body
        if settings.hosts is not None and _name_in(headers.get("host", "")) not in settings.hosts:
            # A page of another site, whose name was made to point here, may not ask for its visitor.
            raise Refused(403, "the service is called by a name that is not its own; use 127.0.0.1 or localhost")
        if settings.key is not None and path != OPEN and not is_page(path):
            self._check_key(headers.get("authorization", ""), settings.key)
        if method in ("POST", "PUT") and headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            # A form of another site can send anything but this.
            raise Refused(415, f"what is sent must be {JSON}, and say so in its Content-Type")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limit:
            raise too_large(limit)

    def _check_key(self, given: str, key: str) -> None:
        kind, _, sent = given.partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(sent.strip().encode("utf-8", "replace"), key.encode()):
            message = "the API key is missing or wrong; send it as a bearer token"
            raise Refused(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # By route: paths are the clients' own, and would be counted each by itself.
        path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.service.metrics.requests.labels(path, method, status).inc()
        self.service.metrics.seconds.labels(path).observe(seconds)


class Body:
    """The ``receive`` of a request, which refuses a body that is too large or comes too slowly."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive, self.limit, self.seen = receive, limit, 0
        self.is_whole = False
        self.deadline = time.monotonic() + SLOWEST_BODY

    async def __call__(self) -> Message:
        if self.is_whole:
            return await self.receive()
        try:
            message = await asyncio.wait_for(self.receive(), max(0.0, self.deadline - time.monotonic()))
        except TimeoutError:
            late = f"the request did not arrive within {SLOWEST_BODY:g} seconds; send it again"
            raise Refused(408, late, headers={"Connection": "close"}) from None
        self.seen += len(message.get("body", b""))
        if self.seen > self.limit:
            raise too_large(self.limit)
        self.is_whole = not message.get("more_body", False)
        return message


def too_large(limit: int) -> Refused:
    message = f"the request is larger than {limit} bytes; send less at once"
    return Refused(413, message, code="request_too_large", headers={"Connection": "close"})


def _name_in(host: str) -> str:
    """Without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
