"""What a client is told when it does not get what it asked for, in the format of OpenAI's errors."""

from __future__ import annotations

import os
from typing import Any

from starlette.exceptions import HTTPException

from contentrope.errors import InputError, WriteError, quoted

RETRY_SECONDS = 1
"""When to come again, where nobody can know better."""
UNKNOWN_DOCUMENT = "document_not_found"


class Refused(HTTPException):
    """Status, and the fields of the error. ``kind`` is its ``type``."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code, self.param = code, param

    @property
    def kind(self) -> str:
        if self.status_code == 429:
            return "rate_limit_error"
        return "server_error" if self.status_code >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """
        >>> Refused(404, "there is no document 'x'", param="documents").body()["error"]["type"]
        'invalid_request_error'
        """
        error = {"message": self.detail, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def unknown_document(document: str) -> Refused:
    return Refused(
        404, f"there is no document {quoted(document)}; see GET /v1/documents", code=UNKNOWN_DOCUMENT, param="documents"
    )


def full(what: str) -> Refused:
    return Refused(
        429,
        f"{what} wait already; try again in a moment",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def unavailable(state: str) -> Refused:
    return Refused(
        503, f"the service is {state}; try again", code="unavailable", headers={"Retry-After": str(RETRY_SECONDS)}
    )


def unreachable() -> Refused:
    return Refused(
        503,
        "the service cannot reach its store; its log has the reason",
        code="storage",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def late(seconds: float) -> Refused:
    return Refused(504, f"the answer was not finished within {seconds:g} seconds; ask for fewer tokens", code="timeout")


def refusal_of(error: BaseException) -> Refused:
    """What a client is told of an exception: the reason where it lies in what was asked, and no inner details."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InputError):
        return Refused(400, str(error), code="invalid_value")
    if isinstance(error, WriteError):
        reason = os.strerror(error.errno or 0)
        return Refused(507, f"the service could not write to its store: {reason}; nothing was changed", code="storage")
    return Refused(500, "the service failed to answer; its log has the reason", code="internal_error")
