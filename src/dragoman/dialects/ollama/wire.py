"""The structs of Ollama's request bodies: shapes and bounds only; the readers interpret them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..fields import INT32, MAX_LOGPROBS, MAX_MESSAGES, Count, Penalty, Probability, TokenId
from ..nested_fields import NestedRules

Int32 = Annotated[int, Meta(ge=-INT32 - 1, le=INT32)]
Integer = int | float
"""Ollama takes whole numbers with a decimal point as integers, as some clients send them."""


class OllamaOptions(Struct, frozen=True, kw_only=True):
    """The honoured fields of `options`. Others are rows of `parameters.OLLAMA_OPTIONS`."""

    num_ctx: Integer | None = None
    num_predict: Integer | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Integer | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class OllamaCalledFunction(Struct, frozen=True):
    """The function of a call. arguments: an object."""

    name: str
    arguments: Raw = Raw()


class OllamaWireCall(Struct, frozen=True):
    function: OllamaCalledFunction
    id: str | None = None


class OllamaWireMessage(Struct, frozen=True):
    """A message of any role.

    images: Base64. tool_name, tool_call_id: of a tool's message.
    """

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaWireCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaFunction(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Raw = Raw()


class OllamaTool(Struct, frozen=True):
    function: OllamaFunction
    type: str = "function"


OLLAMA_NESTED = NestedRules(
    accepted={
        OllamaWireCall: frozenset({"index", "type"}),
        OllamaCalledFunction: frozenset({"index"}),
        OllamaTool: frozenset({"items"}),
        OllamaFunction: frozenset({"strict"}),
    }
)
"""What clients replay of our calls, and declare of tools without an effect on a model."""


class OllamaFields(Struct, frozen=True, kw_only=True):
    """The fields that /api/chat and /api/generate share. None: the client sent null or nothing."""

    model: str | None = None
    stream: bool | None = None
    format: Raw = Raw()
    options: Raw = Raw()
    keep_alive: float | str | None = None
    think: bool | str | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None


class OllamaChatBody(OllamaFields, frozen=True, kw_only=True):
    messages: Annotated[list[OllamaWireMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: list[OllamaTool] | None = None


class OllamaGenerateBody(OllamaFields, frozen=True, kw_only=True):
    prompt: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    system: str | None = None
    template: str | None = None
    context: list[TokenId] | None = None
    raw: bool | None = None


class OllamaEmbedBody(Struct, frozen=True, kw_only=True):
    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Count | None = None
    options: Raw = Raw()
    keep_alive: float | str | None = None


class OllamaEmbeddingsBody(Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    options: Raw = Raw()
    keep_alive: float | str | None = None


class OllamaModelBody(Struct, frozen=True, kw_only=True):
    """A body that names a model: of /api/show and /api/pull. `name` is the deprecated name of `model`."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
