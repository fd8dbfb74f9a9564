"""A set of documents that is joined anew in another order has the same logits; running text has not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from contentrope.hf.loading import load_any
from contentrope.serving import order
from contentrope.serving.engine import READY
from contentrope.store.filling import filled
from tests.serving.served import DOCUMENTS, Served, eventually

MESSAGES = [{"role": "user", "content": "what is blue?"}]

LONG = "".join(f"line {n} of it.\n" for n in range(9))
"""Of several units."""


@pytest.fixture(scope="module")
def asked(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, list[str]]]:
    """In float32: a norm of float64 rounds to float32 inside, and the last bits would be lost there."""

    def load() -> tuple[Any, Any]:
        model, tokenizer = load_any(str(model_folder))
        return model.float(), tokenizer

    served = Served(model_folder, tmp_path_factory.mktemp("order") / "store", load=load)
    eventually(lambda: served.service.engine.state == READY)
    yield served, served.add(*DOCUMENTS, LONG)
    served.end()


def shuffled(served: Served, **options: Any) -> dict[str, Any]:
    status, found = served.send("POST", "/v1/order", {"messages": MESSAGES, **options})
    assert status == 200, found
    return dict(found)


def test_no_bit_of_the_logits_moves_and_those_of_running_text_do(asked: tuple[Served, list[str]]) -> None:
    served, ids = asked
    for seed in range(4):
        found = shuffled(served, seed=seed)
        assert found["difference"] == 0.0
        assert found["control"]["difference"] > 1e-3
        assert sorted(found["documents"]) == sorted(ids)
        assert found["tokens"] == sum(map(len, DOCUMENTS)) + len(LONG) + len("u:what is blue?\na:")
    assert shuffled(served, seed=1)["documents"] == shuffled(served, seed=1)["documents"]
    assert len({tuple(shuffled(served, seed=seed)["documents"]) for seed in range(9)}) > 1
    assert len(shuffled(served, documents=ids[:2])["documents"]) == 2


def test_a_set_that_is_joined_wrongly_is_seen(asked: tuple[Served, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the measurement: units in the order in which they came."""
    served, _ = asked
    own = order.joined_anew

    def wrongly(store: Any, keys: Any, chance: random.Random) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr("contentrope.store.cache._in_order", lambda sets: list(chain.from_iterable(sets.values())))
            # What is read from the store comes by key all the same.
            patched.setattr("contentrope.store.cache.filled", lambda x, sets, n: filled(x, [*map(sorted, sets)], n))
            return own(store, keys, chance)

    monkeypatch.setattr(order, "joined_anew", wrongly)
    assert max(shuffled(served, seed=seed)["difference"] for seed in range(4)) > 0.0


def test_the_set_comes_together_by_edits(asked: tuple[Served, list[str]]) -> None:
    served, ids = asked
    documents = served.service.documents
    keys = list(documents.keys_of(tuple(ids)))
    steps: list[str] = []

    class Chance(random.Random):
        def choice(self, given: Any) -> Any:
            steps.append(super().choice(given))
            return steps[-1]

    cache = order.joined_anew(documents.store, keys[::-1], Chance(0))
    assert cache.documents == keys
    assert len(steps) == len(keys)


def test_what_cannot_be_compared_is_refused(asked: tuple[Served, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    served, ids = asked
    for chosen in (ids[:1], []):
        status, found = served.send("POST", "/v1/order", {"messages": MESSAGES, "documents": chosen})
        assert (status, found["error"]["param"]) == (400, "documents")
    status, found = served.send("POST", "/v1/order", {"messages": MESSAGES, "documents": ["nobody", *ids]})
    assert (status, found["error"]["code"]) == (404, "document_not_found")
    for wrong in ({"messages": []}, {"messages": MESSAGES, "seed": "one"}):
        assert served.send("POST", "/v1/order", wrong)[0] == 400
    monkeypatch.setattr(order, "MOST_TOKENS", 100)
    status, found = served.send("POST", "/v1/order", {"messages": MESSAGES})
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
    assert shuffled(served, documents=ids[:2])["difference"] == 0.0
