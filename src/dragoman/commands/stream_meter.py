"""Reads one streamed answer of any dialect, with the times at which its lines arrived: when tokens came, and how many.

Pure: the caller tells the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from ..engines.simulator.logs.log import LogError
from ..engines.simulator.timing import Timing

CountSource = Literal["ids", "usage"]


class StreamPiece(Struct, frozen=True):
    """What one line of a stream tells.

    has_tokens: it carries a part of the answer, be it text, reasoning or a tool call.
    ids: the number of token ids that it lists; None if it lists none.
    prompt, completion: the server's token counts, where the line has them.
    """

    has_tokens: bool = False
    ids: int | None = None
    prompt: int | None = None
    completion: int | None = None


class Measurement(Struct, frozen=True):
    """One answered request. gaps: seconds between the arrivals of its tokens; those that arrived together have one."""

    timing: Timing
    gaps: tuple[float, ...]
    counted_by: CountSource


class StreamMeter:
    """Meters one answer."""

    def __init__(self, dialect: BenchDialect) -> None:
        self._dialect = dialect
        self._token_times: list[float] = []
        self._ids: int | None = None
        self._prompt: int | None = None
        self._completion: int | None = None

    def feed(self, line: str, at: float) -> None:
        """Raises LogError: the line is an error of the server."""
        payload = line if self._dialect.is_lines else line.removeprefix("data:").strip() if line[:5] == "data:" else ""
        if not payload.startswith("{"):
            return
        try:
            piece = self._dialect.read(payload)
        except msgspec.MsgspecError as error:
            raise LogError(f"a line of the stream cannot be read: {error}") from None
        if piece.ids:
            self._ids = (self._ids or 0) + piece.ids
        # A token without text of its own, such as one of half a character, is in its ids alone.
        if piece.ids or (piece.has_tokens and self._ids is None):
            self._token_times.append(at)
        # Messages reports the prompt in the first event and the completion in the last: neither may erase the other.
        self._prompt = piece.prompt if piece.prompt is not None else self._prompt
        self._completion = piece.completion if piece.completion is not None else self._completion

    def finish(self, id: str, sent_at: float) -> Measurement:
        """Raises LogError: no token came, or the server has not counted them."""
        times, completion = self._token_times, self._ids or self._completion
        if not times or self._prompt is None or completion is None:
            raise LogError("the response has no tokens, or no usage statistics")
        gaps = tuple(after - before for before, after in pairwise(times))
        timing = Timing(id, sent_at, times[0], times[-1], self._prompt, completion)
        return Measurement(timing, gaps, "usage" if self._ids is None else "ids")


@dataclass(frozen=True, slots=True)
class BenchDialect:
    """How to ask in a dialect, and how to read its streams.

    build_body: from the model, the prompt and the number of tokens to generate.
    read: a line's JSON.
    is_lines: JSON Lines instead of server-sent events.
    lists_ids: it knows vLLM's `return_token_ids`.
    """

    path: str
    build_body: Callable[[str, str, int], dict[str, object]]
    read: Callable[[str], StreamPiece]
    is_lines: bool = False
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
    ids = sum(len(choice.token_ids or ()) for choice in chunk.choices)
    has_tokens = any(choice.text or _has_content(choice.delta) for choice in chunk.choices)
    if chunk.usage is None:
        return StreamPiece(has_tokens, ids)
    return StreamPiece(has_tokens, ids, chunk.usage.prompt_tokens, chunk.usage.completion_tokens)


def _has_content(delta: _Delta | None) -> bool:
    if delta is None:
        return False
    texts = (delta.content, delta.reasoning, delta.reasoning_content, delta.refusal)
    return any(texts) or bytes(delta.tool_calls) not in (b"null", b"[]")


def _check_error(error: Raw) -> None:
    if bytes(error) != b"null":
        raise LogError(f"the stream ended with an error: {bytes(error)[:200].decode(errors='replace')}")


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
        # Anthropic's input_tokens are those outside the cache only.
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
    return StreamPiece() if usage is None else StreamPiece(prompt=usage.input_tokens, completion=usage.output_tokens)


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
"""vLLM's field: the answer has exactly as many tokens as were asked for."""
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
            **{"model": model, "messages": _ask_user(prompt), "max_tokens": tokens, "min_tokens": tokens},
            **_OPENAI,
        },
        _read_chunk,
        lists_ids=True,
    ),
    "responses": BenchDialect(
        "/v1/responses",
        lambda model, prompt, tokens: {
            "model": model, "input": prompt, "max_output_tokens": tokens, "store": False, **_EXACT,
        },
        _read_response_event,
    ),
    "messages": BenchDialect(
        "/v1/messages",
        lambda model, prompt, tokens: {
            "model": model, "messages": _ask_user(prompt), "max_tokens": tokens, **_EXACT,
        },
        _read_message_event,
    ),
    "ollama": BenchDialect(
        "/api/chat",
        lambda model, prompt, tokens: {
            "model": model, "messages": _ask_user(prompt), "options": {"num_predict": tokens},
        },
        _read_ollama_line,
        is_lines=True,
    ),
}  # fmt: skip
