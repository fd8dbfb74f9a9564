"""The page at ``/``, and the files it is made of. It asks the service that sent it and nobody else."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response

from contentrope.serving.refusals import Refused

FOLDER = Path(__file__).parent / "static"
PREFIX = "/page/"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def is_page(path: str) -> bool:
    """Whether a path is a part of the page, which holds nothing of anybody's."""
    return path == "/" or path.startswith(PREFIX)


def add_page(app: FastAPI) -> None:
    files = {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}

    @app.get("/")
    async def page() -> Response:
        return _sent(files["index.html"])

    @app.get(PREFIX + "{name}")
    async def part(name: str) -> Response:
        if name not in files:
            raise Refused(404, "the page has no such file")
        return _sent(files[name])


def _sent(path: Path) -> Response:
    return FileResponse(path, media_type=TYPES[path.suffix], headers=HEADERS)
