"""The APIs that can be benchmarked: the requests of each, and how its stream is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw, Struct

from .logs.measured_log import LogError


class StreamPiece(Struct, frozen=True):
    """The contents of one line of a stream.

    has_tokens: the line has part of the answer: text, reasoning or a tool call.
    ids: number of token ids in the line; None or 0 if there are none.
    prompt, completion: token counts of the server's usage; None if the line has none.
    """

    has_tokens: bool = False
    ids: int | None = None
    prompt: int | None = None
    completion: int | None = None


@dataclass(frozen=True, slots=True)
class BenchDialect:
    """An API that can be benchmarked.

    path: path of the endpoint.
    build_body: builds a request body from the model, the prompt and the number of
        tokens to generate.
    read: reads the JSON of one event, or of one line of JSON Lines.
    lists_ids: the API has vLLM's `return_token_ids`.
    """

    path: str
    build_body: Callable[[str, str, int], dict[str, object]]
    read: Callable[[str], StreamPiece]
    lists_ids: bool = False


class _OpenAIUsage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Delta(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Raw = Raw(b"null")


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _OpenAIUsage | None = None
    error: Raw = Raw(b"null")


_CHUNK = msgspec.json.Decoder(_Chunk)


def _read_chunk(line: str) -> StreamPiece:
    chunk = _CHUNK.decode(line)
    _check_error(chunk.error)
    ids = 0
    has_tokens = False
    for choice in chunk.choices:
        ids += len(choice.token_ids or ())
        delta = choice.delta or _Delta()
        texts = (
            choice.text,
            delta.content,
            delta.reasoning,
            delta.reasoning_content,
            delta.refusal,
        )
        has_tokens = has_tokens or any(texts) or bytes(delta.tool_calls) not in (b"null", b"[]")
    if chunk.usage is None:
        return StreamPiece(has_tokens, ids)
    return StreamPiece(has_tokens, ids, chunk.usage.prompt_tokens, chunk.usage.completion_tokens)


def _check_error(error: Raw) -> None:
    if bytes(error) != b"null":
        raise LogError(
            f"the stream ended with an error: {bytes(error)[:200].decode(errors='replace')}"
        )


class _MessagesUsage(Struct):
    input_tokens: int = 0
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int = 0


class _Message(Struct):
    usage: _MessagesUsage


class _BlockDelta(Struct):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _MessageEvent(Struct):
    type: str
    message: _Message | None = None
    delta: _BlockDelta | None = None
    usage: _MessagesUsage | None = None
    error: Raw = Raw(b"null")


_MESSAGE_EVENT = msgspec.json.Decoder(_MessageEvent)


def _read_message_event(line: str) -> StreamPiece:
    event = _MESSAGE_EVENT.decode(line)
    _check_error(event.error)
    if event.message is not None:
        usage = event.message.usage
        # Anthropic's input_tokens excludes cached tokens.
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return StreamPiece(prompt=usage.input_tokens + cached)
    if event.usage is not None:
        return StreamPiece(completion=event.usage.output_tokens)
    delta = event.delta
    return StreamPiece(delta is not None and any((delta.text, delta.thinking, delta.partial_json)))


class _ResponsesUsage(Struct):
    input_tokens: int
    output_tokens: int


class _Response(Struct):
    usage: _ResponsesUsage | None = None
    error: Raw = Raw(b"null")


class _ResponseEvent(Struct):
    type: str
    delta: str | None = None
    response: _Response | None = None
    error: Raw = Raw(b"null")


_RESPONSE_EVENT = msgspec.json.Decoder(_ResponseEvent)


def _read_response_event(line: str) -> StreamPiece:
    event = _RESPONSE_EVENT.decode(line)
    _check_error(event.error)
    if event.response is None:
        return StreamPiece(bool(event.delta))
    _check_error(event.response.error)
    usage = event.response.usage
    return (
        StreamPiece()
        if usage is None
        else StreamPiece(prompt=usage.input_tokens, completion=usage.output_tokens)
    )


class _OllamaMessage(Struct):
    content: str = ""
    thinking: str = ""
    tool_calls: Raw = Raw(b"null")


class _OllamaLine(Struct):
    message: _OllamaMessage | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Raw = Raw(b"null")


_OLLAMA_LINE = msgspec.json.Decoder(_OllamaLine)


def _read_ollama_line(line: str) -> StreamPiece:
    parsed = _OLLAMA_LINE.decode(line)
    _check_error(parsed.error)
    message = parsed.message
    has_tokens = message is not None and (
        bool(message.content or message.thinking) or bytes(message.tool_calls) != b"null"
    )
    return StreamPiece(has_tokens, None, parsed.prompt_eval_count, parsed.eval_count)


_EXACT = {"ignore_eos": True, "stream": True}
"""`ignore_eos` is vLLM's: the response has exactly the requested number of tokens."""
_OPENAI: Mapping[str, object] = {**_EXACT, "stream_options": {"include_usage": True}}


def _ask_user(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


DIALECTS: Mapping[str, BenchDialect] = {
    "completions": BenchDialect(
        "/v1/completions",
        lambda model, prompt, tokens: {
            **{"model": model, "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens},
            **_OPENAI,
        },
        _read_chunk,
        lists_ids=True,
    ),
    "chat": BenchDialect(
        "/v1/chat/completions",
        lambda model, prompt, tokens: {
            **{
                "model": model,
                "messages": _ask_user(prompt),
                "max_tokens": tokens,
                "min_tokens": tokens,
            },
            **_OPENAI,
        },
        _read_chunk,
        lists_ids=True,
    ),
    "responses": BenchDialect(
        "/v1/responses",
        lambda model, prompt, tokens: {
            "model": model,
            "input": prompt,
            "max_output_tokens": tokens,
            "store": False,
            **_EXACT,
        },
        _read_response_event,
    ),
    "messages": BenchDialect(
        "/v1/messages",
        lambda model, prompt, tokens: {
            "model": model,
            "messages": _ask_user(prompt),
            "max_tokens": tokens,
            **_EXACT,
        },
        _read_message_event,
    ),
    "ollama": BenchDialect(
        "/api/chat",
        lambda model, prompt, tokens: {
            "model": model,
            "messages": _ask_user(prompt),
            "options": {"num_predict": tokens},
        },
        _read_ollama_line,
    ),
}
