"""What tokens read, as a service says it: whose shares they are, and that to look changes nothing."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contentrope.hf.inspection import attention_weights
from contentrope.serving.batch import Batch
from contentrope.serving.looking import MOST_DETAILED, Traces
from contentrope.serving.requests import Event, Request
from contentrope.serving.sampling import Sampling
from contentrope.serving.text import Writing
from tests.serving.served import DOCUMENTS, Held, Served
from tests.serving.test_text import of_bytes

CHAT = "/v1/chat/completions"
QUESTION = "what is blue?"
LONG = "".join(f"line {n} of it.\n" for n in range(9))
"""Of several units."""


@pytest.fixture(scope="module")
def asked(shared: Served) -> tuple[Served, list[str]]:
    return shared, shared.add(*DOCUMENTS, LONG)


def body(**options: Any) -> dict[str, Any]:
    given = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 9}
    return {**given, "look": True, **options}


def choice(served: Served, **options: Any) -> dict[str, Any]:
    status, found = served.send("POST", CHAT, body(**options))
    assert status == 200, found
    return dict(found["choices"][0])


def streamed(served: Served, **options: Any) -> tuple[str, list[dict[str, Any]], list[str]]:
    """The text, the looks of its chunks, and the texts of its chunks."""
    with served.client() as client:
        given = body(stream=True, **options)
        look = {"look": given.pop("look")}
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**given, extra_body=look)]
    texts = [chunk.delta.content or "" for chunk in chunks]
    return "".join(texts), [(chunk.model_extra or {}).get("look") for chunk in chunks], texts


def detail_of(token: dict[str, Any]) -> torch.Tensor:
    detail = token["detail"]
    assert detail["dtype"] == "float16"
    return torch.from_numpy(np.frombuffer(base64.b64decode(detail["data"]), "<f2").reshape(detail["shape"]).copy())


def test_the_shares_are_the_attention_weights_of_the_model(asked: tuple[Served, list[str]]) -> None:
    """Read all at once, with the same memory units, by the model alone."""
    served, ids = asked
    found, store = choice(served, documents=ids), served.service.documents.store
    units, tokens = found["look"]["units"], found["look"]["tokens"]
    assert set(units) == {unit for one in served.service.documents.by_id.values() for unit in one.units}
    assert len(units) > len(ids)
    pieces = store.read(units)
    texts = [pieces[unit].ids.tolist() for unit in units]
    prompt = served.service.engine.loaded.tokenizer(f"u:{QUESTION}\na:")["input_ids"]
    written = served.service.engine.loaded.tokenizer(found["message"]["content"])["input_ids"]
    assert len(written) == len(tokens) > 3
    columns = [*(token for text in texts for token in text), *prompt, *written]
    groups = torch.cat([torch.full((len(text),), n) for n, text in enumerate(texts)])
    rest = len(columns) - len(groups)
    groups = torch.cat([groups, torch.full((rest,), len(texts))])[None]
    memory = groups < len(texts)
    ends = torch.zeros_like(memory)
    ends[0, [int((groups[0] <= n).sum()) - 1 for n in range(len(texts))]] = True
    newline = prompt[-3]
    ends[0, len(columns) - rest :] = torch.tensor([*prompt, *written]) == newline
    weights = attention_weights(store.model, torch.tensor([columns]), groups=groups, unit_ends=ends, unit_memory=memory)
    by_layer = torch.stack([layer[0] for layer in weights])
    assert by_layer.dtype == torch.float64
    first = len(columns) - len(written) - 1
    for n, token in enumerate(tokens):
        shares = by_layer[:, :, first + n]
        sums = torch.tensor([*token["units"], token["rest"]], dtype=torch.float64)
        torch.testing.assert_close(sums, shares.mean((0, 1)), rtol=1e-5, atol=1e-12)
        assert float(sums.sum()) == pytest.approx(1.0, abs=1e-5)
        strongest = torch.tensor(token["strongest"], dtype=torch.float64)
        torch.testing.assert_close(strongest, shares[..., :-1].amax((0, 1)), rtol=1e-5, atol=1e-12)
        assert token["detail"]["units"] == list(range(len(units)))
        torch.testing.assert_close(detail_of(token).double(), shares[..., :-1], rtol=1e-3, atol=1e-6)
    assert len({tuple(token["units"]) for token in tokens}) == len(tokens)


def test_the_answer_is_the_same_with_and_without_a_look(asked: tuple[Served, list[str]]) -> None:
    served, ids = asked
    for options in ({}, {"temperature": 1.5, "seed": 3}, {"documents": []}, {"documents": ids[:1], "stop": ["a", "e"]}):
        plain, looked = choice(served, look=False, **options), choice(served, **options)
        assert "look" in looked
        assert looked.pop("look")["tokens"] or not looked["message"]["content"]
        assert plain == looked
    assert "look" not in choice(served, look=None)


def test_without_documents_all_is_read_elsewhere(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    look = choice(served, documents=[])["look"]
    assert look["units"] == []
    assert look["tokens"]
    for token in look["tokens"]:
        assert token["units"] == []
        assert token["rest"] == pytest.approx(1.0, abs=1e-6)


def test_a_stream_tells_what_the_whole_answer_tells(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    whole = choice(served)
    text, looks, texts = streamed(served)
    assert text == whole["message"]["content"]
    assert looks[0]["units"] == whole["look"]["units"]
    assert [token for look in looks if look for token in look["tokens"]] == whole["look"]["tokens"]
    for look, piece in list(zip(looks, texts, strict=True))[1:-1]:
        assert "".join(token["text"] for token in look["tokens"]) == piece
    assert all(look is None for look in streamed(served, look=False)[1])


def test_a_stop_word_holds_text_and_what_was_read_for_it(asked: tuple[Served, list[str]]) -> None:
    """A stop word of two letters that begins and does not come, and one that comes."""
    served, _ = asked
    free = choice(served)
    text, tokens = free["message"]["content"], free["look"]["tokens"]
    held = text[2] + next(letter for letter in "xyz" if letter != text[3])
    _, looks, texts = streamed(served, stop=[held])
    assert "".join(texts) == text
    assert [token for look in looks if look for token in look["tokens"]] == tokens
    assert any(len(look["tokens"]) > 1 for look in looks[1:-1])
    stopped = choice(served, stop=[text[3:5]])
    shown = stopped["look"]["tokens"]
    assert "".join(token["text"] for token in shown) == stopped["message"]["content"] == text[: text.find(text[3:5])]
    assert shown == tokens[: len(shown)]


def test_in_a_batch_only_who_asks_is_told_and_is_told_the_same(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    questions = ["what is blue?", "who?", "seven swans swim where?"]
    bodies = [
        body(messages=[{"role": "user", "content": text}], look=number == 1, max_tokens=4 + number)
        for number, text in enumerate(questions)
    ]
    alone = [choice(served, **one) for one in bodies]
    before, batches = served.metric("batch_rows_sum"), served.metric("batch_rows_count")
    with ThreadPoolExecutor(4) as pool:
        with Held(served) as held:
            blocking = pool.submit(choice, served, documents=[], look=False)
            held.wait()
            waiting = [pool.submit(choice, served, **one) for one in bodies]
            while served.service.engine.queue_length < 3:
                pass
        together = [one.result() for one in waiting]
        blocking.result()
    assert (served.metric("batch_rows_sum") - before, served.metric("batch_rows_count") - batches) == (4, 2)
    for one, other in zip(alone, together, strict=True):
        assert one["message"] == other["message"]
    assert ["look" in one for one in together] == [False, True, False]
    for one, other in zip(alone[1]["look"]["tokens"], together[1]["look"]["tokens"], strict=True):
        assert other["text"] == one["text"]
        assert other["units"] == pytest.approx(one["units"], rel=1e-5)


def test_nobody_looks_where_nobody_asks(asked: tuple[Served, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    served, _ = asked

    def refused(*given: Any, **options: Any) -> None:
        raise AssertionError("somebody looks")

    monkeypatch.setattr("contentrope.serving.looking.looking", refused)
    assert choice(served, look=False)["message"]["content"]
    assert served.send("POST", CHAT, body())[0] == 500


@pytest.mark.parametrize("value", ["yes", 1, {}, [True]])
def test_a_look_that_is_no_boolean_is_refused(asked: tuple[Served, list[str]], value: Any) -> None:
    served, _ = asked
    status, found = served.send("POST", CHAT, body(look=value))
    assert (status, found["error"]["param"]) == (400, "look")


def test_of_many_units_those_that_were_read_most_come_in_detail(serve: Any) -> None:
    served = serve()
    served.add(*(f"number {n} is {n * n}." for n in range(MOST_DETAILED + 5)))
    for token in choice(served, max_tokens=3)["look"]["tokens"]:
        chosen = token["detail"]["units"]
        assert len(token["units"]) == MOST_DETAILED + 5
        assert len(chosen) == MOST_DETAILED
        least = min(token["strongest"][n] for n in chosen)
        assert all(token["strongest"][n] <= least for n in set(range(len(token["units"]))) - set(chosen))
        by_unit = detail_of(token).double().mean((0, 1))
        expected = torch.tensor([token["units"][n] for n in chosen], dtype=torch.float64)
        torch.testing.assert_close(by_unit, expected, rtol=1e-2, atol=1e-6)


@given(st.text(alphabet="abé☃", max_size=20), st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3))
def test_what_a_token_read_belongs_to_the_text_it_made(text: str, stop: list[str]) -> None:
    """Tokens are bytes; a share stands for each."""
    writing, traces = Writing(of_bytes, stop), Traces(())
    data, shown, told = text.encode(), "", []
    for n, byte in enumerate(data):
        piece = writing.add(byte)
        is_last = writing.stopped or n == len(data) - 1
        piece += writing.rest() if is_last else ""
        shown += piece
        look = traces.after(torch.full((1, 1, 1), float(n)), writing.made, piece, is_last=is_last)
        told += look.tokens
        assert all(token.start + len(token.text) <= len(shown) for token in look.tokens)
        if is_last:
            break
    made_by = [n for n, letter in enumerate(text) for _ in letter.encode()]
    assert [int(token.shares) for token in told] == [n for n in range(len(data)) if made_by[n] < len(shown)]
    for token in told:
        assert (token.start, token.text) == (made_by[int(token.shares)], text[made_by[int(token.shares)]])


@given(
    st.lists(st.text(alphabet="abc", min_size=1, max_size=3), min_size=1, max_size=8),
    st.lists(st.text(alphabet="abc", min_size=2, max_size=3), max_size=2),
)
def test_a_token_is_told_when_all_its_text_is_there(pieces: list[str], stop: list[str]) -> None:
    """Of several characters, of which some may be held and some cut."""
    writing = Writing(lambda ids: "".join(pieces[n] for n in ids), stop)
    traces, shown, told = Traces(()), "", []
    for n in range(len(pieces)):
        text = writing.add(n)
        is_last = writing.stopped or n == len(pieces) - 1
        text += writing.rest() if is_last else ""
        shown += text
        found = traces.after(torch.full((1, 1, 1), float(n)), writing.made, text, is_last=is_last).tokens
        told += found
        assert is_last or all(token.text == pieces[int(token.shares)] for token in found)
        assert is_last or len("".join(pieces[: len(told) + 1])) > len(shown)
        if is_last:
            break
    assert "".join(token.text for token in told) == shown
    assert [int(token.shares) for token in told] == list(range(len(told)))


def test_who_leaves_takes_nobodys_reading_along(asked: tuple[Served, list[str]]) -> None:
    """The first of two rows is given up between two calls of the model."""
    served, _ = asked
    engine = served.service.engine
    heard: list[list[Event]] = [[], [], []]
    prompts = [[5, 6, 7], [8, 9, 10, 11], [8, 9, 10, 11]]
    requests = [
        Request(prompt=prompt, sampling=Sampling(temperature=0), new_tokens=2, look=True, hear=events.append)
        for prompt, events in zip(prompts, heard, strict=True)
    ]
    prefix = engine.prefixes.get(served.service.documents.keys_of("all"))
    with torch.no_grad():
        together = Batch(engine.speaker, prefix.copied(2), requests[:2])
        requests[0].ended = True
        together.step()
        Batch(engine.speaker, prefix.copied(), requests[2:]).step()
    assert not heard[0]
    (one,), (other,) = (events[0].look.tokens for events in heard[1:] if events[0].look)
    assert one.text == other.text
    torch.testing.assert_close(one.shares, other.shares, rtol=0, atol=1e-9)
