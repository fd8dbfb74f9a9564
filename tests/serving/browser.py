"""A real Chromium without a screen, which may reach one service and nobody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """Where it is: as CONTENTROPE_CHROMIUM says, or on the path."""
    return os.environ.get("CONTENTROPE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched(executable: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, base: str, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page, and what went wrong in it: errors of scripts, and requests to others, which are cut off."""
    context, wrong = browser.new_context(**options), list[str]()

    def pass_on(route: Any) -> None:
        if route.request.url.startswith(base):
            route.continue_()
        else:
            wrong.append(f"a request to {route.request.url}")
            route.abort()

    context.route("**/*", pass_on)
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.set_default_timeout(20_000)
    try:
        page.goto(base)
        yield page, wrong
    finally:
        context.unroute_all(behavior="ignoreErrors")
        context.close()
