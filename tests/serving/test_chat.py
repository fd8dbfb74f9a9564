"""The real client of OpenAI: answers, streams and refusals."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serving.served import DOCUMENTS, Served, answer_of

CHAT = "/v1/chat/completions"
QUESTION: list[Any] = [{"role": "user", "content": "what is blue?"}]
GREEDY = {"model": "tiny", "messages": QUESTION, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def asked(shared: Served) -> tuple[Served, list[str]]:
    return shared, shared.add(*DOCUMENTS)


def streamed(client: openai.OpenAI, **options: Any) -> tuple[list[Any], str]:
    chunks = list(client.chat.completions.create(stream=True, **{**GREEDY, **options}))
    return chunks, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_stream_has_the_text_of_the_whole_answer(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    with served.client() as client:
        whole = client.chat.completions.create(**GREEDY)
        chunks, text = streamed(client, stream_options={"include_usage": True})
        plain, same = streamed(client)
    assert text == same == whole.choices[0].message.content
    assert len(text) > 2
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in plain)
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_counts_documents_messages_and_answer(asked: tuple[Served, list[str]]) -> None:
    served, ids = asked
    with served.client() as client:
        some = client.chat.completions.create(**GREEDY, extra_body={"documents": ids[:1]})
        none = client.chat.completions.create(**GREEDY, extra_body={"documents": []})
    assert none.usage.prompt_tokens == len("u:what is blue?\na:")
    assert some.usage.prompt_tokens == none.usage.prompt_tokens + len(DOCUMENTS[0])
    assert some.usage.prompt_tokens_details.cached_tokens == len(DOCUMENTS[0])
    assert none.usage.completion_tokens <= 12
    assert some.usage.total_tokens == some.usage.prompt_tokens + some.usage.completion_tokens


def test_the_answer_depends_on_the_documents_that_are_read(asked: tuple[Served, list[str]]) -> None:
    served, ids = asked
    answers = [served.ask(extra_body={"documents": chosen}) for chosen in ([], ids[:1], ids[1:], ids)]
    assert len(set(answers)) > 2
    assert served.ask() == served.ask(extra_body={"documents": "all"}) == answers[-1]


def test_the_order_of_documents_does_not_change_the_answer(asked: tuple[Served, list[str]]) -> None:
    served, ids = asked
    orders = [ids, ids[::-1], [ids[1], ids[0], ids[2]], [*ids, ids[0]]]
    assert len({served.ask(extra_body={"documents": order}) for order in orders}) == 1


def test_an_answer_ends_at_its_length_or_before_a_stop_word(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    with served.client() as client:
        long = client.chat.completions.create(**{**GREEDY, "max_tokens": 5})
        text = str(long.choices[0].message.content)
        assert (long.choices[0].finish_reason, long.usage.completion_tokens) == ("length", 5)
        short = client.chat.completions.create(**GREEDY, stop=[text[2:4], "???"])
        assert short.choices[0].finish_reason == "stop"
        assert short.choices[0].message.content == text[: text.find(text[2:4])]
        _, in_parts = streamed(client, stop=text[2:4])
        assert in_parts == short.choices[0].message.content
        newer = client.chat.completions.create(**{**GREEDY, "max_tokens": None, "max_completion_tokens": 5})
        assert newer.choices[0].message.content == text


def test_a_seed_gives_the_same_answer_again(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    answers = [served.ask(temperature=1.5, seed=seed, max_tokens=20) for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_messages_may_come_in_parts_and_from_developers(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    parts: Any = [
        {"role": "user", "content": [{"type": "text", "text": "what is "}, {"type": "text", "text": "blue?"}]}
    ]
    with served.client() as client:
        found = client.chat.completions.create(**{**GREEDY, "messages": parts, "max_tokens": 8})
    assert found.choices[0].message.content == served.ask()
    told: Any = [{"role": "developer", "content": "be brief"}, *QUESTION]
    as_system: Any = [{"role": "system", "content": "be brief"}, *QUESTION]
    with served.client() as client:
        one, other = (client.chat.completions.create(**{**GREEDY, "messages": x}) for x in (told, as_system))
    assert one.choices[0].message.content == other.choices[0].message.content


def test_the_example_of_the_documentation_runs(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    served = serve()
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    example, *_ = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    example = example.replace("http://127.0.0.1:8000", served.base).replace('"smol"', '"tiny"')
    names: dict[str, Any] = {}
    exec(example, names)
    names["client"].close()
    assert capsys.readouterr().out == f"{names['answer'].choices[0].message.content}\n"
    assert names["answer"].usage.prompt_tokens_details.cached_tokens == len("The sky is blue today.")


def test_models_are_listed(asked: tuple[Served, list[str]]) -> None:
    with asked[0].client() as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


def test_unknown_fields_are_let_pass(asked: tuple[Served, list[str]]) -> None:
    served, _ = asked
    known_values = {
        "n": 1,
        "user": "me",
        "logprobs": False,
        "presence_penalty": 0.0,
        "tools": None,
        "of_tomorrow": {"x": 1},
    }
    assert served.ask(extra_body=known_values) == served.ask()


WRONG: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "another model": ({"model": "gpt"}, 404, "model"),
    "no messages": ({"messages": []}, 400, "messages"),
    "messages are a text": ({"messages": "hello"}, 400, "messages"),
    "unknown role": ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
    "half a character": ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "messages"),
    "a number in words": ({"max_tokens": "5"}, 400, "max_tokens"),
    "no tokens": ({"max_tokens": 0}, 400, "max_tokens"),
    "too many tokens": ({"max_tokens": 10**9}, 400, "max_tokens"),
    "truth for a number": ({"temperature": True}, 400, "temperature"),
    "too hot": ({"temperature": 2.5}, 400, "temperature"),
    "an infinite number": ({"temperature": float("inf")}, 400, "temperature"),
    "more than all": ({"top_p": 1.5}, 400, "top_p"),
    "a large seed": ({"seed": 2**70}, 400, "seed"),
    "an empty stop word": ({"stop": ""}, 400, "stop"),
    "five stop words": ({"stop": list("abcde")}, 400, "stop"),
    "two answers": ({"n": 2}, 400, "n"),
    "tools": ({"tools": [{"type": "function"}]}, 400, "tools"),
    "JSON wanted": ({"response_format": {"type": "json_object"}}, 400, "response_format"),
    "an unknown document": ({"documents": ["none"]}, 404, "documents"),
    "documents by number": ({"documents": 3}, 400, "documents"),
    "stream is a word": ({"stream": "yes"}, 400, "stream"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_by_name(asked: tuple[Served, list[str]], case: str) -> None:
    served, _ = asked
    change, status, param = WRONG[case]
    found = served.send("POST", CHAT, {**GREEDY, **change})
    assert found[0] == status, found
    assert found[1]["error"]["param"] == param
    assert found[1]["error"]["type"] == "invalid_request_error"
    assert found[1]["error"]["message"]


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "3", '{"model": ', b"\xff\xfe\x00", "[" * 100_000, "{}" * 3, "1" * 5000]
)
def test_what_is_no_request_is_refused(asked: tuple[Served, list[str]], body: str | bytes) -> None:
    status, found = asked[0].send("POST", CHAT, body)
    assert status == 400, found
    assert found["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v2"), ("GET", CHAT), ("PATCH", "/v1/documents"), ("GET", "/x" * 900)]
)
def test_what_is_no_route_is_refused_in_the_same_format(
    asked: tuple[Served, list[str]], method: str, path: str
) -> None:
    status, found = asked[0].send(method, path)
    assert status in (404, 405)
    assert found["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("sent", [b"POST /v1/chat/comple", b"nonsense\r\n\r\n", b""], ids=["half", "none", "empty"])
def test_the_service_goes_on_after_half_a_request(asked: tuple[Served, list[str]], sent: bytes) -> None:
    served, _ = asked
    before = served.ask()
    whole = json.dumps(GREEDY).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(whole)}"
    for part in (sent, f"{head}\r\n\r\n".encode() + whole[:20]):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
            connection.sendall(part)
    assert served.ask() == before


def test_a_wrong_key_is_refused_and_the_right_one_is_let_in(serve: Any) -> None:
    served = serve(key="secret-key")
    with served.client("secret-key") as client:
        assert answer_of(client, "hello") is not None
    for wrong in ("secret-kex", "", "secret-key-and-more", "sécret"):
        status, found = served.send("GET", "/v1/models", headers={"Authorization": f"Bearer {wrong}".encode()})
        assert (status, found["error"]["code"]) == (401, "invalid_api_key")
    with served.client("other") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert served.send("GET", "/metrics")[0] == served.send("POST", CHAT, GREEDY)[0] == 401
    assert served.send("GET", "/health")[0] == served.send("GET", "/")[0] == 200


def test_a_page_of_another_site_cannot_ask_for_its_visitor(asked: tuple[Served, list[str]]) -> None:
    """By a name of its own that it has pointed here, or with a form, which cannot say that it sends JSON."""
    served, _ = asked
    assert served.send("GET", "/v1/documents", headers={"Host": "evil.example"})[0] == 403
    assert served.send("GET", "/v1/documents", headers={"Host": "localhost:1"})[0] == 200
    for kind in ("text/plain", "text/plain; application/json", ""):
        assert served.send("POST", "/v1/documents", {"text": "x"}, {"Content-Type": kind})[0] == 415
    no_one = {"model": "none"}
    assert served.send("POST", CHAT, no_one, {"Content-Type": "Application/JSON; charset=utf-8"})[0] == 400
