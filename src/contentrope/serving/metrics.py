"""What a service tells Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from contentrope.serving.engine import Engine
from contentrope.serving.requests import Usage

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Of one engine; in a registry of its own, as a process may have several."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry, "namespace": "contentrope"}
        self.requests = Counter("requests", "Answered requests.", ["path", "method", "status"], **made)
        self.seconds = Histogram("request_seconds", "Time to a whole answer.", ["path"], buckets=SECONDS, **made)
        self.first = Histogram("first_token_seconds", "Time to the first token.", buckets=SECONDS, **made)
        self.tokens = Counter("tokens", "Tokens of documents, of messages and of answers.", ["kind"], **made)
        self.rows = Histogram("batch_rows", "Requests of a batch as it begins.", buckets=ROWS, **made)
        self.documents = Gauge("documents", "Documents.", **made)
        self.damaged = Gauge("damaged_documents", "Files of documents that cannot be read.", **made)
        self.store_bytes = Gauge("store_bytes", "Bytes of the store.", **made)
        Gauge("queue_length", "Requests that wait.", **made).set_function(lambda: engine.queue_length)
        Gauge("running_requests", "Requests that are being answered.", **made).set_function(lambda: engine.running)
        engine.watch = self.rows.observe

    def count(self, usage: Usage) -> None:
        kinds = {"document": usage.documents, "prompt": usage.prompt - usage.documents, "answer": usage.completion}
        for kind, tokens in kinds.items():
            self.tokens.labels(kind).inc(tokens)

    def text(self) -> bytes:
        return generate_latest(self.registry)
