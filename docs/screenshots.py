"""Makes the pictures of docs/serving.md: the page of a service, in a real Chromium, over a model of yours.

python -m docs.screenshots --model runs/smol
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from tests.serving.browser import chromium, launched, opened
from tests.serving.served import Process

FOLDER = Path(__file__).parent
SIZE = {"width": 1200, "height": 900}
MOST_BYTES = 200_000
PATIENCE = 300_000
"""Milliseconds for an answer: models may be large, and machines slow."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="folder of a converted model")
    parser.add_argument("--name", default="smollm2-135m", help="what the page calls it")
    given = parser.parse_args()
    executable = chromium()
    if executable is None:
        raise SystemExit("there is no Chromium: install one, or name it in CONTENTROPE_CHROMIUM")
    with tempfile.TemporaryDirectory() as folder:
        process = Process(given.model, Path(folder) / "store", "--name", given.name)
        try:
            with launched(executable) as browser:
                show(browser, f"http://127.0.0.1:{process.port}/")
        finally:
            process.terminate()


def show(browser: Any, base: str) -> None:
    with opened(browser, base, viewport=SIZE) as (page, wrong):
        page.set_default_timeout(PATIENCE)
        page.get_by_role("button", name="Add six example texts").click()
        page.locator(".document").nth(5).wait_for()
        ask(page, "Who is the keeper of the lighthouse?")
        page.locator(".token").first.click()
        page.mouse.move(5, 5)
        save(page, "page.png")
        page.get_by_role("button", name="New chat").click()
        ask(page, "How much does a walnut loaf cost?")
        edit(page, "Bakery", "four euros", "nine euros")
        page.get_by_role("button", name="Ask again").click()
        page.locator(".turn.old ~ .turn .again").wait_for()
        save(page, "page-edit.png")
    with opened(browser, base, viewport=SIZE, color_scheme="dark", reduced_motion="reduce") as (page, more):
        page.set_default_timeout(PATIENCE)
        ask(page, "When is the library closed?")
        page.get_by_role("button", name="Shuffle").click()
        page.locator("#order .measured").first.wait_for()
        save(page, "page-order.png")
    if wrong or more:
        raise SystemExit(f"the page failed: {[*wrong, *more]}")


def ask(page: Any, question: str) -> None:
    page.get_by_label("Your question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator(".again").last.wait_for()


def edit(page: Any, name: str, old: str, new: str) -> None:
    item = page.locator(".document", has_text=name).first
    item.get_by_role("button", name="Edit").click()
    field = item.get_by_role("textbox")
    field.fill(field.input_value().replace(old, new))
    item.get_by_role("button", name="Save").click()
    page.locator(".told:not(:empty)").wait_for()


def save(page: Any, name: str) -> None:
    page.wait_for_timeout(700)  # until what lights up has lit up
    data = page.screenshot(animations="disabled")
    if len(data) > MOST_BYTES:
        raise SystemExit(f"{name} would have {len(data)} bytes, at most {MOST_BYTES}: make the window smaller")
    (FOLDER / name).write_bytes(data)
    print(f"{FOLDER / name}: {len(data) / 1000:.0f} KB")


if __name__ == "__main__":
    main()
