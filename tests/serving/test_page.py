"""The page, as a person uses it, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.serving.browser import chromium, launched, opened
from tests.serving.served import DOCUMENTS, Held, Served, eventually, send

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium: install one, or name it in CONTENTROPE_CHROMIUM"
)
expect: Any = sync_api.expect
HOSTILE = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched(str(chromium())) as made:
        yield made


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; a script that fails in one, or a request to somebody else, fails the test."""
    running: list[Any] = []
    found: list[list[str]] = []

    def visit(served: Served, **options: Any) -> Any:
        running.append(opened(browser, served.base, **options))
        page, wrong = running[-1].__enter__()
        found.append(wrong)
        return page

    yield visit
    for one in running:
        one.__exit__(None, None, None)
    assert not any(found)


def add(page: Any, text: str, name: str = "") -> None:
    page.locator("#adding").evaluate("element => element.open = true")
    page.get_by_label("Text of the new document").fill(text)
    page.get_by_label("Name (optional)").fill(name)
    before = page.locator(".document").count()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".document")).to_have_count(before + 1)


def ask(page: Any, text: str = "what is blue?", tokens: int = 6) -> str:
    """The answer."""
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer").fill(str(tokens))
    page.get_by_text("Settings").click()
    page.get_by_label("Your question").fill(text)
    before = page.locator(".again").count()
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".again")).to_have_count(before + 1)
    return str(page.locator(".answer").last.inner_text())


def lights(page: Any) -> list[float]:
    """How strongly each unit is lit."""
    found = page.locator(".unit").evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--light')))")
    return [float(value) for value in found]


def fulfilled(status: int, route: Any) -> None:
    route.fulfill(status=status, body="{}")


def document(page: Any, name: str) -> Any:
    return page.locator(".document", has_text=name)


def test_from_an_empty_store_to_an_answer_that_shows_what_it_read(serve: Any, visit: Any) -> None:
    served = serve()
    page = visit(served)
    expect(page.get_by_role("button", name="Shuffle")).to_be_disabled()
    page.locator("#adding").wait_for()
    for name, text in zip(("sky", "grass", "swans"), DOCUMENTS, strict=True):
        add(page, text, name)
    expect(page.locator("#added")).to_have_text(re.compile("1 unit.* 0 of 2 "))
    expect(page.locator(".empty")).to_be_hidden()
    assert set(lights(page)) == {0.0}
    answer = ask(page)
    assert answer == served.ask(max_tokens=6)
    tokens = page.locator(".token")
    assert tokens.all_inner_texts() == list(answer)
    whole = lights(page)
    assert max(whole) == 1.0
    shown = []
    for token in tokens.all():
        token.hover()
        shown.append(lights(page))
    assert all(max(one) == 1.0 and min(one) < 1.0 for one in shown)
    assert len(set(map(tuple, shown))) > 1
    tokens.nth(1).click()
    page.mouse.move(0, 0)
    assert lights(page) == shown[1]
    expect(tokens.nth(1)).to_have_attribute("aria-pressed", "true")
    panel = page.get_by_role("region", name="What was read")
    expect(panel.get_by_role("img")).to_have_attribute("aria-label", re.compile("2 layers by 4 heads"))
    panel.get_by_label("Shares of").select_option("units")
    parts = panel.locator(".number").all_inner_texts()
    assert len(parts) == len(DOCUMENTS) + 1
    assert sum(float(part.rstrip("%")) for part in parts) == pytest.approx(100.0, abs=2.0)
    # The unit that was read most is the one that is lit most, whichever heads are meant.
    for heads in ("units", "strongest"):
        panel.get_by_label("Shares of").select_option(heads)
        most = panel.locator("button .name").first.inner_text()
        assert lights(page)[["sky", "grass", "swans"].index(most)] == 1.0


def test_tokens_are_reached_by_keyboard_and_units_show_their_readers(serve: Any, visit: Any) -> None:
    served = serve()
    served.add(*DOCUMENTS)
    page = visit(served)
    page.get_by_label("Your question").fill("what is blue?")
    page.get_by_label("Your question").press("Enter")
    expect(page.locator(".again")).to_have_count(1)
    tokens = page.locator(".token")
    assert tokens.nth(0).get_attribute("tabindex") == "0"
    tokens.nth(0).focus()
    first = lights(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(2)).to_be_focused()
    assert lights(page) != first
    page.keyboard.press("Enter")
    expect(tokens.nth(2)).to_have_attribute("aria-pressed", "true")
    assert page.locator(".token[tabindex='0']").count() == 1
    page.locator(".unit").nth(1).click()
    expect(page.locator(".unit.chosen")).to_have_count(1)
    strengths = tokens.evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--light')))")
    assert max(strengths) == 1.0
    assert len(set(strengths)) > 1


def test_an_edit_computes_one_unit_and_changes_the_answer(serve: Any, visit: Any) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    page = visit(served)
    before = ask(page)
    item = document(page, ids[0])
    item.get_by_role("button", name="Edit").click()
    item.get_by_role("textbox").fill("the sky is red.")
    item.get_by_role("button", name="Save").click()
    told = document(page, ids[0]).locator(".told")
    expect(told).to_have_text(re.compile("1 unit.* 15 tokens.* 0 of 3 "))
    expect(document(page, ids[0]).locator(".unit")).to_have_text("the sky is red.")
    expect(document(page, ids[0]).get_by_role("button", name="Edit")).to_be_focused()
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".turn.old")).to_have_count(1)
    expect(page.locator(".again")).to_have_count(1)
    after = page.locator(".answer").last.inner_text()
    assert after == served.ask(max_tokens=6) != before


def test_an_edit_that_computes_others_would_be_seen(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a store that writes other bytes for a unit it has."""
    served = serve()
    ids = served.add(*DOCUMENTS)
    documents = served.service.documents
    own, seen = documents._checksums, []

    def checksums() -> dict[str, str]:
        seen.append(own())
        return seen[-1] if len(seen) == 1 else {**seen[-1], min(seen[0]): "another"}

    monkeypatch.setattr(documents, "_checksums", checksums)
    status, made = served.send("PUT", f"/v1/documents/{ids[0]}", {"text": "other."})
    assert (status, made["computed"]["others"], made["computed"]["changed"]) == (200, 3, 1)


def test_only_chosen_documents_are_read(serve: Any, visit: Any) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    page = visit(served)
    document(page, ids[1]).get_by_role("checkbox").uncheck()
    expect(page.locator("#selected")).to_contain_text("2 of 3")
    assert ask(page) == served.ask(max_tokens=6, extra_body={"documents": [ids[0], ids[2]]})
    found = lights(page)
    assert found[1] == 0.0
    assert max(found) == 1.0
    page.get_by_label("read all").check()
    expect(page.locator("#selected")).to_contain_text("3 of 3")
    page.get_by_label("read all").uncheck()
    page.get_by_role("button", name="New chat").click()
    assert ask(page) == served.ask(max_tokens=6, extra_body={"documents": []})
    assert set(lights(page)) == {0.0}


def test_shuffling_moves_the_list_and_no_logit(serve: Any, visit: Any) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    page = visit(served, reduced_motion="reduce")
    expect(page.locator(".document")).to_have_count(3)
    with page.expect_response("**/v1/order") as answered:
        page.get_by_role("button", name="Shuffle").click()
    own, control = page.locator("#order .own output"), page.locator("#order .control output")
    expect(own).to_have_text("0")
    assert float(control.inner_text()) > 0
    order = answered.value.json()["documents"]
    assert sorted(order) == sorted(ids)
    assert page.locator(".document").evaluate_all("all => all.map(one => one.id)") == [f"doc-{one}" for one in order]


def test_files_are_dropped_and_others_refused(serve: Any, visit: Any, tmp_path: Path) -> None:
    page = visit(serve())
    for name in ("one.txt", "two.md", "three.pdf"):
        (tmp_path / name).write_text(f"{name[:3]} and more.")
    page.locator("#files").set_input_files([tmp_path / name for name in ("one.txt", "three.pdf")])
    expect(page.locator(".document")).to_have_count(1)
    expect(page.get_by_role("alert")).to_contain_text("three.pdf")
    page.locator("main").evaluate(
        """main => {
            const files = new DataTransfer();
            files.items.add(new File(["two and more."], "two.md"));
            main.querySelector(".documents").dispatchEvent(
                new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
        }"""
    )
    expect(document(page, "two.md").locator(".unit")).to_have_text("two and more.")


def test_a_removed_document_is_gone_and_comes_back(serve: Any, visit: Any) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    page = visit(served)
    document(page, ids[2]).get_by_role("button", name="Remove").click()
    expect(page.locator(".document")).to_have_count(2)
    assert ids[2] not in served.service.documents.by_id
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".document")).to_have_count(3)
    assert served.service.documents.get(ids[2]).text == DOCUMENTS[2]


def test_what_a_document_says_is_text(serve: Any, visit: Any) -> None:
    served = serve()
    for text, name in ((HOSTILE, IMAGE), (IMAGE, HOSTILE)):
        assert served.send("POST", "/v1/documents", {"text": text, "name": name})[0] == 201
    page = visit(served)
    for place, (text, name) in enumerate(((HOSTILE, IMAGE), (IMAGE, HOSTILE))):
        expect(page.locator(".unit").nth(place)).to_have_text(text)
        expect(page.locator(".document strong").nth(place)).to_have_text(name)
    ask(page, HOSTILE + IMAGE)
    expect(page.locator(".question")).to_have_text(HOSTILE + IMAGE)
    expect(page.locator(".shares")).to_contain_text(HOSTILE)
    expect(page.locator(".shares")).to_contain_text(IMAGE)
    assert page.locator("main img, main script").count() == 0


def test_the_page_refuses_markup_and_other_hosts(serve: Any, browser: Any) -> None:
    """What the policy does if the page itself were wrong; these errors are meant."""
    served = serve()
    with opened(browser, served.base) as (page, _):
        assert page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } }"
        )
        refused = page.evaluate(
            """async () => {
                const found = [];
                document.addEventListener("securitypolicyviolation", event => found.push(event.effectiveDirective));
                await fetch("http://127.0.0.1:9/").catch(() => null);
                await new Promise(done => {
                    const made = document.createElement("img");
                    made.onerror = made.onload = done;
                    made.src = "http://127.0.0.1:9/x.png";
                    document.body.append(made);
                });
                return found;
            }"""
        )
    assert refused == ["connect-src", "img-src"]


def test_a_key_is_asked_for_and_kept_for_the_tab(serve: Any, visit: Any) -> None:
    served = serve(key="a-secret")
    page = visit(served)
    field = page.get_by_label("This service asks for an API key.")
    expect(field).to_be_focused()
    expect(page.locator("main")).to_be_hidden()
    field.fill("wrong")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("key")
    expect(page.locator("main")).to_be_hidden()
    field.fill("a-secret")
    field.press("Enter")
    expect(page.locator("main")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    add(page, DOCUMENTS[0])
    page.reload()
    expect(page.locator(".document")).to_have_count(1)
    assert page.evaluate("() => [Object.keys(localStorage).length, document.cookie]") == [0, ""]


def test_errors_of_the_service_are_shown(serve: Any, visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(queue=1, rows=1, batches=1)
    served.add(*DOCUMENTS)
    page = visit(served)

    def broken(*given: Any) -> None:
        raise RuntimeError("the model is on fire")

    with monkeypatch.context() as patched:
        patched.setattr(served.service.engine.speaker, "logits", broken)
        ask(page)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The service failed")
    expect(alert).not_to_contain_text("fire")
    alert.get_by_role("button").click()
    expect(alert).to_be_hidden()
    for status, word in ((429, "busy"), (503, "not ready"), (504, "too long")):
        page.route("**/v1/chat/completions", partial(fulfilled, status))
        ask(page)
        expect(alert).to_contain_text(word)
        page.unroute("**/v1/chat/completions")
    page.get_by_label("Longest answer").evaluate("field => field.removeAttribute('min')")
    ask(page, tokens=-1)
    expect(alert).to_contain_text("max_tokens")
    assert ask(page) == served.ask(max_tokens=6)
    expect(alert).to_be_hidden()


def test_an_answer_can_be_stopped(serve: Any, visit: Any) -> None:
    served = serve()
    page = visit(served)
    with Held(served, free=3) as held:
        page.get_by_label("Your question").fill("what?")
        page.get_by_role("button", name="Ask", exact=True).click()
        held.wait()
        expect(page.locator(".token")).not_to_have_count(0)
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".about")).to_contain_text("stopped")
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
        held.release()
    eventually(lambda: served.service.engine.is_idle)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_of_many_documents_only_those_in_sight_are_fetched(serve: Any, visit: Any) -> None:
    served = serve()
    served.add(*(f"number {n} is {n * 7}." for n in range(60)))
    page = visit(served, viewport={"width": 1000, "height": 500})
    expect(page.locator(".document")).to_have_count(60)
    expect(page.locator(".unit").first).to_have_text("number 0 is 0.")
    page.wait_for_load_state("networkidle")
    assert 0 < page.locator(".unit").count() < 40
    page.locator(".document").last.scroll_into_view_if_needed()
    expect(page.locator(".document").last.locator(".unit")).to_have_text("number 59 is 413.")
    assert page.locator(".dot").count() == 60


def test_the_page_fits_narrow_screens(serve: Any, visit: Any) -> None:
    served = serve()
    served.add(*DOCUMENTS, "a" * 48)
    page = visit(served, viewport={"width": 320, "height": 640}, color_scheme="dark")
    ask(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 320
    named = "one => one.labels?.length || one.textContent.trim() || one.getAttribute('aria-label')"
    for control in page.locator("button, input, textarea, summary").all():
        assert control.evaluate(named), control.evaluate("one => one.outerHTML")


def test_parts_of_the_page_need_no_key_and_say_what_they_are(serve: Any) -> None:
    import http.client

    served = serve(key="a-secret")
    for path, kind in (("/", "text/html"), ("/page/app.js", "text/javascript"), ("/page/style.css", "text/css")):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == 200
            assert response.headers["content-type"].startswith(kind)
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            assert b"http:" not in response.read().replace(b"http://www.w3.org/2000/svg", b"")
        finally:
            connection.close()
    for path in ("/page/nothing.js", "/page/../v1/documents", "/page/%2e%2e/app.py", "/page/..%2fapp.py"):
        assert send(served.port, "GET", path)[0] == 404
    assert send(served.port, "GET", "/v1/documents")[0] == 401
