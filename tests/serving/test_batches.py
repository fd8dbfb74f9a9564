"""An answer does not depend on who else is asked for, or on what fails beside it."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

import contentrope.hf as chf
from contentrope.hf.plain import load_tokenizer
from contentrope.serving.batch import Batch, Speaker
from contentrope.serving.requests import Event, Request
from contentrope.serving.sampling import Sampling
from contentrope.store import UnitStore
from tests.serving.served import DOCUMENTS, PATIENCE, Held, Served, answer_of, eventually, texts_of

QUESTIONS = [
    f"{what} {who}?" for what in ("what is", "how many", "why is there a") for who in ("blue", "swans", "grass 7")
]
SETS = [[], [0], [1, 2], [2, 1, 0]]
TOKENS = 10


class Reader:
    """The model by itself, asked by its own ``generate``."""

    def __init__(self, model: Path, store: Path) -> None:
        self.model, self.tokenizer = chf.from_pretrained(model), load_tokenizer(str(model))
        self.store = UnitStore(store, self.model, self.tokenizer)
        self.keys = self.store.add(DOCUMENTS)

    def prompt(self, question: str) -> str:
        return f"u:{question}\na:"

    def answer(self, question: str, chosen: list[int]) -> str:
        inputs = self.store.ask(self.prompt(question), [self.keys[n] for n in chosen])
        before = inputs["input_ids"].shape[1]
        textless = list(range(len(self.tokenizer), self.model.config.vocab_size))
        options: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False, "suppress_tokens": textless}
        found = self.model.generate(**inputs, **options, pad_token_id=0)
        return str(self.tokenizer.decode(found[0, before:], skip_special_tokens=True))

    def events(self, questions: list[str], chosen: list[int]) -> list[list[Event]]:
        """Of a batch of these questions."""
        heard: list[list[Event]] = [[] for _ in questions]
        requests = [
            Request(
                prompt=self.tokenizer(self.prompt(question))["input_ids"],
                sampling=Sampling(temperature=0),
                new_tokens=TOKENS - len(question) % 6,
                hear=events.append,
            )
            for question, events in zip(questions, heard, strict=True)
        ]
        cache = self.store.cache([self.keys[n] for n in chosen])
        with torch.no_grad():
            batch = Batch(Speaker(self.model, self.tokenizer), cache.copied(len(requests)), requests)
            while batch.rows:
                batch.step()
        return heard


@pytest.fixture(scope="module")
def reader(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(model_folder, tmp_path_factory.mktemp("reader") / "store")


@pytest.mark.parametrize("chosen", SETS, ids=str)
def test_rows_of_a_batch_get_what_each_gets_alone(reader: Reader, chosen: list[int]) -> None:
    """Their questions are of different lengths, and they end at different tokens."""
    together = reader.events(QUESTIONS, chosen)
    ends = {events[-1].usage.completion for events in together if events[-1].usage}
    assert together == [reader.events([question], chosen)[0] for question in QUESTIONS]
    assert len(ends) > 1


def test_logits_of_a_row_are_those_it_has_alone(reader: Reader) -> None:
    speaker, cache = Speaker(reader.model, reader.tokenizer), reader.store.cache(reader.keys)

    def logits(questions: list[str]) -> torch.Tensor:
        ids = [reader.tokenizer(reader.prompt(question))["input_ids"] for question in questions]
        requests = [Request(prompt=prompt, new_tokens=3, hear=lambda event: None) for prompt in ids]
        with torch.no_grad():
            return Batch(speaker, cache.copied(len(requests)), requests).logits

    together = logits(QUESTIONS)
    for row, question in enumerate(QUESTIONS):
        torch.testing.assert_close(together[row], logits([question])[0], rtol=0, atol=1e-11)
    assert float((together[0] - together[1]).abs().max()) > 1e-3
    assert not cache.has_read_on


def test_two_hundred_at_once_each_get_their_own_answer(serve: Any, reader: Reader) -> None:
    served = serve(rows=8, queue=200)
    ids = served.add(*DOCUMENTS)
    asked = [(question, chosen) for question in QUESTIONS for chosen in SETS]
    asked = random.Random(0).sample(asked * 6, 200)

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        question, chosen = asked[number]
        options: dict[str, Any] = {
            "model": "tiny",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": TOKENS,
            "extra_body": {"documents": [ids[n] for n in chosen]},
        }
        if number % 2:
            found = await client.chat.completions.create(**options)
            return str(found.choices[0].message.content)
        stream = await client.chat.completions.create(**options, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        base = f"{served.base}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0, timeout=PATIENCE) as client:
            return await asyncio.gather(*(one(client, number) for number in range(len(asked))))

    expected = {(question, str(chosen)): reader.answer(question, chosen) for question in QUESTIONS for chosen in SETS}
    answers = asyncio.run(all_of_them())
    assert answers == [expected[question, str(chosen)] for question, chosen in asked]
    assert len(set(answers)) > 15
    batches, rows = served.metric("batch_rows_count"), served.metric("batch_rows_sum")
    assert rows == 200
    assert batches < 100  # they were decoded together


def test_a_failure_is_told_to_its_batch_and_the_engine_goes_on(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    before, speaker = served.ask(), served.service.engine.speaker
    own = speaker.logits

    def failing(*args: Any) -> Any:
        raise RuntimeError("the secret path /home/me")

    speaker.logits = failing
    status, found = served.send(
        "POST", "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    )
    assert (status, found["error"]["type"]) == (500, "server_error")
    assert "secret" not in str(found)
    assert "secret" in caplog.text
    speaker.logits = own
    assert served.ask() == before


def test_a_failure_in_the_midst_of_a_stream_is_its_last_event(serve: Any) -> None:
    served = serve()
    speaker, calls = served.service.engine.speaker, []
    own = speaker.logits

    def failing_later(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("later")
        return own(*args)

    speaker.logits = failing_later
    message: Any = [{"role": "user", "content": "what is blue?"}]
    with served.client() as client:
        stream = client.chat.completions.create(model="tiny", messages=message, stream=True, temperature=0)
        heard: list[str] = []
        with pytest.raises(openai.APIError):
            texts_of(stream, heard)
    assert len(heard) == 3  # the role, and two tokens
    speaker.logits = own
    assert served.ask()


def test_those_who_come_while_others_are_answered_wait_for_no_end(serve: Any) -> None:
    """A short request over the same documents is answered before a long one that began earlier has ended."""
    served = serve()
    with ThreadPoolExecutor(2) as pool, Held(served) as held:
        long = pool.submit(served.ask, "how many swans?", max_tokens=200, extra_body={"seed": 1}, temperature=2)
        held.wait()
        short = pool.submit(served.ask, "what is blue?", max_tokens=2)
        eventually(lambda: served.service.engine.queue_length == 1)
        held.release()
        assert short.result(PATIENCE) == served.ask("what is blue?", max_tokens=2)
        assert long.result(PATIENCE)
    assert served.metric("batch_rows_count") == 3


def test_answers_go_on_while_a_long_document_is_read(serve: Any) -> None:
    served = serve()
    alone = served.ask(max_tokens=12)
    documents = served.service.documents
    compute, inside = documents.compute, []

    def watched(text: str) -> Any:
        before = held.calls
        made = compute(text)
        inside.append((held.calls - before, len(made[0].units)))
        return made

    documents.compute = watched
    with ThreadPoolExecutor(2) as pool, Held(served, free=2) as held:
        asked = pool.submit(served.ask, max_tokens=12)
        held.wait()
        added = pool.submit(served.add, "".join(f"line {number} of a long text\n" for number in range(9)))
        eventually(lambda: len(served.service.engine._jobs) == 1)
        held.release()
        assert asked.result(PATIENCE) == alone
        assert added.result(PATIENCE)
    assert inside == [(inside[0][1], inside[0][1])]
    assert inside[0][1] > 3


def test_requests_that_wait_together_are_decoded_together(serve: Any) -> None:
    served: Served = serve(batches=1)
    alone = [served.ask(question) for question in QUESTIONS]
    batches = served.metric("batch_rows_count")
    with ThreadPoolExecutor(len(QUESTIONS) + 1) as pool, Held(served) as held:
        first = pool.submit(served.ask)
        held.wait()
        others = [pool.submit(served.ask, question) for question in QUESTIONS]
        eventually(lambda: served.service.engine.queue_length == len(QUESTIONS))
        held.release()
        assert [other.result(PATIENCE) for other in others] == alone
        first.result(PATIENCE)
    assert served.metric("batch_rows_count") == batches + 2


def test_keeping_no_prefix_changes_no_answer(serve: Any) -> None:
    """With room for none every batch has its documents joined anew, and one row."""
    served = serve(cache=1)
    roomy = Served(Path(served.service.settings.model), Path(served.service.settings.store).parent / "other")
    try:
        ids, others = served.add(*DOCUMENTS), roomy.add(*DOCUMENTS)
        for chosen in SETS:
            one = served.ask(extra_body={"documents": [ids[n] for n in chosen]})
            assert one == roomy.ask(extra_body={"documents": [others[n] for n in chosen]})
        assert served.service.engine.prefixes.bytes == 0 < roomy.service.engine.prefixes.bytes
    finally:
        roomy.end()


def test_the_prefix_that_was_not_used_for_longest_goes_first(serve: Any) -> None:
    served = serve()
    ids = served.add(*DOCUMENTS)
    prefixes = served.service.engine.prefixes
    for chosen in ([0], [1], [0], [2]):
        served.ask(extra_body={"documents": [ids[n] for n in chosen]})
    keys = [(served.service.documents.get(name).key,) for name in ids]
    assert list(prefixes._kept) == [keys[1], keys[0], keys[2]]
    prefixes.most = prefixes.bytes - 1
    served.ask(extra_body={"documents": [ids[2]]})
    assert list(prefixes._kept) == [keys[0], keys[2]]


def test_the_client_answers_are_not_mixed_up_by_threads(serve: Any) -> None:
    served = serve(rows=3)
    alone = {question: served.ask(question) for question in QUESTIONS}
    with ThreadPoolExecutor(6) as pool, served.client() as client:
        found = list(pool.map(lambda question: (question, answer_of(client, question)), QUESTIONS * 2))
    assert all(alone[question] == answer for question, answer in found)
