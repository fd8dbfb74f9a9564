"""``POST /v1/chat/completions``: whole answers and streamed ones."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from contentrope.errors import quoted
from contentrope.serving.gate import answer
from contentrope.serving.looking import Look
from contentrope.serving.refusals import Refused, unavailable
from contentrope.serving.requests import Event, Usage
from contentrope.serving.sampling import Sampling
from contentrope.serving.schemas import ChatRequest
from contentrope.serving.service import Service
from contentrope.serving.streaming import EventStream, Listening, line_of


async def complete(service: Service, asked: ChatRequest, http: HttpRequest) -> Response:
    new_tokens = _checked(service, asked)
    if service.prompts is None:
        raise unavailable(service.engine.state)
    prompt = await run_in_threadpool(service.prompts.ids, asked.messages)
    if (needed := len(prompt) + new_tokens) > service.limits.context:
        message = f"messages ({len(prompt)} tokens) and answer ({new_tokens}) have {needed} tokens"
        raise Refused(400, f"{message}, at most {service.limits.context}", code="context_length_exceeded")
    (await service.refreshed()).keys_of(asked.documents)  # an unknown one is refused before it waits
    listening = Listening(
        service.engine,
        http.receive,
        prompt=prompt,
        documents=asked.documents,
        sampling=_sampling(asked),
        new_tokens=new_tokens,
        stop=asked.stop,
        look=bool(asked.look),
    )
    reply = Reply(service, asked)
    if asked.stream:
        return await reply.streamed(listening)
    with listening:
        return await reply.whole(listening)


def _checked(service: Service, asked: ChatRequest) -> int:
    """How many tokens the answer may have."""
    limits = service.limits
    if asked.model != service.settings.name:
        message = f"there is no model {quoted(asked.model)}; this service has {quoted(service.settings.name)}"
        raise Refused(404, message, code="model_not_found", param="model")
    if len(asked.messages) > limits.messages:
        raise Refused(400, f"messages: {len(asked.messages)} of them, at most {limits.messages}", param="messages")
    name = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    given = getattr(asked, name)
    if given is not None and given > limits.new_tokens:
        raise Refused(400, f"{name} is {given}, at most {limits.new_tokens}", code="invalid_value", param=name)
    return given or limits.new_tokens


def _sampling(asked: ChatRequest) -> Sampling:
    given = {"temperature": asked.temperature, "top_p": asked.top_p, "seed": asked.seed}
    return Sampling(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


class Reply:
    """In the format of OpenAI's answers."""

    def __init__(self, service: Service, asked: ChatRequest) -> None:
        self.service, self.asked = service, asked
        self.about = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": asked.model}

    async def whole(self, listening: Listening) -> Response:
        text, looks, event = "", list[Look](), await self._first(listening)
        while True:
            if event.error is not None:
                raise event.error
            text += event.text
            if event.look is not None:
                looks.append(event.look)
            if event.usage is not None:
                break
            event = await listening.next()
        self.service.metrics.count(event.usage)
        message = {"role": "assistant", "content": text, "refusal": None}
        choice: dict[str, Any] = {"message": message, "finish_reason": event.finish}
        if looks:
            whole = Look(looks[0].units, [token for look in looks for token in look.tokens])
            choice["look"] = whole.described(units=True)
        return answer(
            {
                **self.about,
                "object": "chat.completion",
                "choices": [{"index": 0, **choice, "logprobs": None}],
                "usage": _shown(event.usage),
            }
        )

    async def streamed(self, listening: Listening) -> Response:
        """Begun when there is something to say: a refusal until then has its own status."""
        try:
            first = await self._first(listening)
            if first.error is not None:
                raise first.error
        except BaseException:
            listening.close()
            raise
        return EventStream(listening, self._lines(listening, first))

    async def _lines(self, listening: Listening, event: Event) -> AsyncIterator[str]:
        yield self._chunk({"role": "assistant", "content": ""}, look=_units_of(event.look))
        while True:
            if event.error is not None:
                yield line_of(event.error.body())
                break
            if event.text or (event.look is not None and event.look.tokens):
                yield self._chunk({"content": event.text}, look=_tokens_of(event.look))
            if event.usage is not None:
                self.service.metrics.count(event.usage)
                yield self._chunk({}, event.finish)
                if self._wants_usage:
                    yield line_of({**self._of_chunks, "choices": [], "usage": _shown(event.usage)})
                break
            event = await listening.next()
        yield line_of("[DONE]")

    async def _first(self, listening: Listening) -> Event:
        event = await listening.next()
        if event.error is None:
            self.service.metrics.first.observe(time.monotonic() - listening.request.since)
        return event

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, look: dict[str, Any] | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        if look is not None:
            choice["look"] = look
        usage = {"usage": None} if self._wants_usage else {}
        return line_of({**self._of_chunks, "choices": [choice], **usage})

    @property
    def _of_chunks(self) -> dict[str, Any]:
        return {**self.about, "object": "chat.completion.chunk"}

    @property
    def _wants_usage(self) -> bool:
        options = self.asked.stream_options
        return options is not None and bool(options.include_usage)


def _units_of(look: Look | None) -> dict[str, Any] | None:
    return None if look is None else {"units": list(look.units), "tokens": []}


def _tokens_of(look: Look | None) -> dict[str, Any] | None:
    return None if look is None else look.described(units=False)


def _shown(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.documents},
    }
