"""What clients may send, checked field by field. Unknown fields are ignored; those that would change an answer and
cannot be honoured are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from contentrope.errors import quoted
from contentrope.serving.requests import Selection

STRICT = ConfigDict(strict=True, extra="ignore")
ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
MOST_STOPS, MOST_IN_A_REQUEST = 4, 1000
MODES = {"n": 1, "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0}
"""Fields of which only one value is served."""
EMPTY_ONLY = ("tools", "functions", "logit_bias", "modalities", "audio", "prediction")
REMEDIES = {"n": "send the request as often as you want answers"}


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError(f"must be text, got {quoted(given)}")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError("has half a character (an unpaired surrogate); send whole ones") from None
    return given


def _texts(given: Any) -> tuple[str, ...]:
    """One or several."""
    return tuple(map(_text, given)) if isinstance(given, list) else (_text(given),)


def _text_or_texts(given: Any) -> str | list[str]:
    found = _texts(given)
    return list(found) if isinstance(given, list) else found[0]


def _content(given: Any) -> str:
    """Of a message: text, or parts that are text."""
    if not isinstance(given, list):
        return "" if given is None else _text(given)
    for part in given:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ValueError(f"only parts of type text are read, got {quoted(part)}")
    return "".join(_text(part.get("text")) for part in given)


def _selection(given: Any) -> Selection:
    if given is None or given == "all":
        return "all"
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"must be a list of ids, or 'all', got {quoted(given)}")
    return tuple(dict.fromkeys(given))


Content = Annotated[Any, AfterValidator(_content)]
Texts = Annotated[Any, AfterValidator(_texts)]
Stops = Annotated[Any, AfterValidator(lambda given: () if given is None else _texts(given))]
Selected = Annotated[Any, AfterValidator(_selection)]
Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[Text, Field(max_length=200)]
Id = Annotated[str, Field(pattern=ID)]
Metadata = Annotated[dict[Name, Text], Field(max_length=64)]


class Message(BaseModel):
    model_config = STRICT
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = ""


class StreamOptions(BaseModel):
    model_config = STRICT
    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The body of ``POST /v1/chat/completions``."""

    model_config = STRICT | ConfigDict(extra="allow")
    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    documents: Selected = "all"
    """Which are read."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops = ()
    stream: bool | None = None
    look: bool | None = None
    """Whether to say which units each token of the answer read."""
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _can_be_served(self) -> ChatRequest:
        if len(self.stop) > MOST_STOPS or "" in self.stop:
            raise ValueError(f"stop: give at most {MOST_STOPS} texts, none of them empty")
        given: dict[str, Any] = self.model_extra or {}
        for name, served in MODES.items():
            if given.get(name) is not None and given[name] != served:
                raise ValueError(f"{name}: only {served} is served; {REMEDIES.get(name, 'leave it out')}")
        for name in EMPTY_ONLY:
            if given.get(name) not in (None, [], {}) and given[name] != ["text"]:
                raise ValueError(f"{name}: is not served; leave it out")
        if given.get("response_format") not in (None, {"type": "text"}):
            raise ValueError("response_format: only text is served; leave it out")
        return self


class OrderRequest(BaseModel):
    """The body of ``POST /v1/order``: a question whose documents are shuffled."""

    model_config = STRICT
    messages: Annotated[list[Message], Field(min_length=1)]
    documents: Selected = "all"
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None


class NewDocuments(BaseModel):
    """The body of ``POST /v1/documents``: one text or several."""

    model_config = STRICT
    text: Annotated[Any, AfterValidator(_text_or_texts)]
    id: Id | None = None
    name: Name | None = None
    metadata: Metadata | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if isinstance(self.text, str) else tuple(self.text)

    @model_validator(mode="after")
    def _names_one(self) -> NewDocuments:
        if not 0 < len(self.texts) <= MOST_IN_A_REQUEST:
            raise ValueError(f"text: send from 1 to {MOST_IN_A_REQUEST} texts")
        if isinstance(self.text, list) and (self.id or self.name):
            raise ValueError("text: is a list, for which id and name cannot stand; send one text, or leave them out")
        return self


class ChangedDocument(BaseModel):
    """The body of ``PUT /v1/documents/{id}``; what is left out stays."""

    model_config = STRICT
    text: Text
    name: Name | None = None
    metadata: Metadata | None = None
