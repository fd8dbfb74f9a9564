"""The thread that owns the model. It loads it, and then takes turns: one piece of other work, such as a document to
add, new batches while there is room, and a token for every running batch. Long documents leave room for tokens too.

Whatever goes wrong in a turn is told to those whose turn it was; the thread goes on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import torch

from contentrope.errors import InputError
from contentrope.serving.batch import Batch, Speaker
from contentrope.serving.documents import Documents
from contentrope.serving.limits import Limits
from contentrope.serving.prefixes import Keys, Prefixes
from contentrope.serving.refusals import Refused, full, refusal_of, unavailable
from contentrope.serving.requests import Event, Request
from contentrope.store import SetCache

LOADING, READY, DRAINING, STOPPED = "loading", "ready", "draining", "stopped"
PATIENCE = 5.0
"""Seconds that the end waits for a turn to end, which may be the loading of a large model."""
log = logging.getLogger("contentrope.serving")

Result = TypeVar("Result")


class Loaded(NamedTuple):
    """What the thread owns."""

    model: Any
    tokenizer: Any
    documents: Documents


class Job(NamedTuple):
    function: Callable[[], Any]
    future: Future


class Engine:
    def __init__(self, load: Callable[[], Loaded], limits: Limits) -> None:
        self.limits = limits
        self.state = LOADING
        self.failure: BaseException | None = None
        """Why nothing could be loaded."""
        self.loaded: Loaded | None = None
        self.watch: Callable[[int], None] = lambda rows: None
        """Called with the rows of every batch that begins."""
        self._load = load
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._jobs: deque[Job] = deque()
        self._batches: list[Batch] = []
        self._is_busy = False
        self._thread = threading.Thread(target=self._run, name="contentrope engine", daemon=True)

    # --- from other threads ---

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Take a request, or refuse it at once."""
        with self._wake:
            self._require_ready()
            if len(self._waiting) >= self.limits.queue:
                raise full(f"{len(self._waiting)} requests")
            self._waiting.append(request)
            self._wake.notify_all()

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Have something done by the engine's thread, between two tokens."""
        future: Future[Result] = Future()
        with self._wake:
            self._require_ready()
            if len(self._jobs) >= self.limits.queue:
                raise full(f"{len(self._jobs)} changes of documents")
            self._jobs.append(Job(function, future))
            self._wake.notify_all()
        return future

    def cancel(self, request: Request) -> None:
        """Nobody listens any more: it leaves the queue now, or its batch before the next token."""
        with self._wake:
            request.ended = True
            if request in self._waiting:
                self._waiting.remove(request)

    def drain(self) -> None:
        """Finish what was taken, take nothing new."""
        with self._wake:
            if self.state in (LOADING, READY):
                self.state = DRAINING
            self._wake.notify_all()

    def stop(self) -> None:
        """After the current turn; whoever still waits is told."""
        with self._wake:
            self.state = STOPPED
            self._wake.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(PATIENCE)

    @property
    def queue_length(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return sum(len(batch.rows) for batch in self._batches)

    @property
    def is_idle(self) -> bool:
        with self._wake:
            return not (self._waiting or self._jobs or self._batches or self._is_busy)

    def _require_ready(self) -> None:
        if self.state != READY:
            raise unavailable(self.state)

    # --- in the thread ---

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._open()
                while self._turn():
                    pass
        except BaseException as error:
            self.failure = error
        finally:
            self._end()

    def _open(self) -> None:
        self.loaded = self._load()
        self.documents = self.loaded.documents
        self.documents.meanwhile = self._advance
        self.speaker = Speaker(self.loaded.model, self.loaded.tokenizer)
        self.prefixes = Prefixes(self.documents, self.limits.cache)
        with self._wake:
            if self.state == LOADING:
                self.state = READY

    def _turn(self) -> bool:
        """False: there will be no other."""
        with self._wake:
            self._is_busy = False
            while not (self.state == STOPPED or self._waiting or self._jobs or self._batches):
                self._wake.wait()
            if self.state == STOPPED:
                return False
            self._is_busy = True
            job = self._jobs.popleft() if self._jobs else None
        if job is not None and job.future.set_running_or_notify_cancel():
            try:
                job.future.set_result(job.function())
            except Exception as error:
                _log(error)
                job.future.set_exception(refusal_of(error))
        while len(self._batches) < self.limits.batches and self._begin():
            pass
        self._advance()
        return True

    def _begin(self) -> bool:
        """A batch of those that wait for longest and others over the same documents; False: nobody waits."""
        with self._wake:
            if not self._waiting:
                return False
            keys, requests = self._next()
        if requests:
            try:
                prefix = self.prefixes.get(keys)
                requests, others = self._fitting(requests, prefix)
                with self._wake:
                    self._waiting.extendleft(reversed(others))
                if requests:
                    self.watch(len(requests))
                    self._batches.append(Batch(self.speaker, prefix.copied(len(requests)), requests))
            except Exception as error:
                self._fail(requests, error)
        return True

    def _next(self) -> tuple[Keys, list[Request]]:
        first = self._waiting[0]
        try:
            keys = self.documents.keys_of(first.documents)
        except Refused as error:
            self._waiting.popleft()
            self._fail([first], error)
            return (), []
        chosen: list[Request] = []
        for request in self._waiting:
            if len(chosen) < self.limits.rows and self._asks(request, first, keys):
                chosen.append(request)
        for request in chosen:
            self._waiting.remove(request)
        return keys, chosen

    def _asks(self, request: Request, first: Request, keys: Keys) -> bool:
        """Whether it asks the same documents. One that names unknown ones is told when its turn comes."""
        if request.documents == first.documents:
            return True
        try:
            return self.documents.keys_of(request.documents) == keys
        except Refused:
            return False

    def _fitting(self, requests: list[Request], prefix: SetCache) -> tuple[list[Request], list[Request]]:
        """Those whose copies of the documents fit into memory, and those that go into the next batch."""
        fitting = []
        for request in requests:
            needed = prefix.tokens + len(request.prompt) + request.new_tokens
            if needed > self.limits.context:
                message = (
                    f"documents ({prefix.tokens} tokens), messages ({len(request.prompt)}) and answer "
                    f"({request.new_tokens}) are more than {self.limits.context} tokens; choose fewer documents"
                )
                self._fail([request], Refused(400, message, code="context_length_exceeded", param="messages"))
            else:
                fitting.append(request)
        rows = max(1, int(min(self.limits.rows, self.limits.cache / max(1, prefix.nbytes))))
        return fitting[:rows], fitting[rows:]

    def _advance(self) -> None:
        """A token for every batch."""
        for batch in list(self._batches):
            try:
                batch.step()
            except Exception as error:
                self._fail([row.request for row in batch.rows], error)
                batch.rows = []
            if not batch.rows:
                self._batches.remove(batch)

    def _fail(self, requests: list[Request], error: Exception) -> None:
        _log(error)
        for request in requests:
            if not request.ended:
                request.ended = True
                request.tell(Event(error=refusal_of(error)))

    def _end(self) -> None:
        with self._wake:
            self.state = STOPPED
            left = [*self._waiting, *(row.request for batch in self._batches for row in batch.rows)]
            jobs, self._batches = list(self._jobs), []
            self._waiting.clear()
            self._jobs.clear()
            self._is_busy = False
        self._fail(left, unavailable(self.state))
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(unavailable(self.state))


def _log(error: Exception) -> None:
    """What is the service's own fault, with its traceback; what a client did wrong is told to the client alone."""
    if not isinstance(error, Refused | InputError):
        log.error("a request failed", exc_info=error)
