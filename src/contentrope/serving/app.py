"""The routes of a service."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from contentrope.serving import chat, order
from contentrope.serving.engine import READY
from contentrope.serving.gate import Gate, answer, refusal
from contentrope.serving.page import add_page
from contentrope.serving.refusals import Refused, refusal_of
from contentrope.serving.schemas import ChangedDocument, ChatRequest, NewDocuments, OrderRequest
from contentrope.serving.service import Service
from contentrope.store.document_files import NamedDocument
from contentrope.store.named import Work


def create_app(service: Service) -> ASGIApp:
    """The service as an ASGI application; its engine is started by whoever runs it."""
    app = FastAPI(title="contentrope", docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app)
    _add_chat(app, service)
    _add_documents(app, service)
    _add_state(app, service)
    add_page(app)
    return Gate(app, service)


def _add_chat(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def complete(asked: ChatRequest, request: Request) -> Response:
        return await chat.complete(service, asked, request)

    @app.get("/v1/models")
    async def models() -> Response:
        return answer({"object": "list", "data": [_model(service)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != service.settings.name:
            raise Refused(404, "there is no such model; see GET /v1/models", code="model_not_found", param="model")
        return answer(_model(service))


def _add_documents(app: FastAPI, service: Service) -> None:
    @app.post("/v1/documents")
    async def add(asked: NewDocuments) -> Response:
        found = [_made(made, work) for made, work in await service.add(asked)]
        return answer(found[0] if isinstance(asked.text, str) else {"object": "list", "data": found}, 201)

    @app.get("/v1/documents")
    async def documents() -> Response:
        found = await service.refreshed()
        damaged = [{"file": file, "reason": reason} for file, reason in sorted(found.files.damaged.items())]
        data = [one.described() for one in found.by_id.values()]
        return answer({"object": "list", "data": data, **({"damaged": damaged} if damaged else {})})

    @app.get("/v1/documents/{document}")
    async def document(document: str) -> Response:
        return answer((await service.refreshed()).get(document).described(text=True))

    @app.get("/v1/documents/{document}/units")
    async def units(document: str) -> Response:
        return answer({"object": "list", "data": await service.units_of(document)})

    @app.put("/v1/documents/{document}")
    async def change(document: str, asked: ChangedDocument) -> Response:
        return answer(_made(*await service.change(document, asked)))

    @app.delete("/v1/documents/{document}")
    async def remove(document: str) -> Response:
        await service.remove(document)
        return answer({"id": document, "object": "document.deleted", "deleted": True})

    @app.post("/v1/order")
    async def shuffled(asked: OrderRequest) -> Response:
        return answer(order.described(await service.order(asked)))


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        state = service.engine.state
        return answer({"status": state}, 200 if state == READY else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if not isinstance(error, Refused):  # of the framework: no such path, a body that is no JSON
            error = Refused(error.status_code, str(error.detail), headers=dict(error.headers or {}))
        return refusal(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return refusal(_refusal_of_fields(error.errors()))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return refusal(refusal_of(error))


def _refusal_of_fields(errors: Any) -> Refused:
    """Of the first field that is wrong."""
    first = errors[0]
    place = [str(part) for part in first["loc"][1:]]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return Refused(400, f"the body is no JSON ({message}, near character {place[-1]})", code="invalid_json")
    if not place:
        param = message.partition(":")[0] if first["type"] == "value_error" else None
        return Refused(400, message, code="invalid_value", param=param)
    return Refused(400, f"{'.'.join(place)}: {message}", code="invalid_value", param=place[0])


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.settings.name, "object": "model", "created": service.created, "owned_by": "contentrope"}


def _made(document: NamedDocument, work: Work) -> dict[str, Any]:
    return {**document.described(), "computed": work._asdict()}
