"""Client side of the APIs that generate text: build requests, and read answers and
streams in one common form.

The `fold` functions accumulate a stream as the official clients do. They are lenient:
`conformance` checks the form of streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from .rules import anthropic, chat, checks, completions, ollama, responses
from .rules.checks import Violation, require, require_object, require_string
from .session import Json, get_object, get_objects

REASONS = {
    "stop": "stop", "length": "length", "tool_calls": "calls", "function_call": "calls",
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "calls",
    "model_context_window_exceeded": "length",
    "completed": "stop", "max_output_tokens": "length",
}  # fmt: skip
"""An API's finish reason -> the common one of `ClientAnswer.reason`; others stay as
they are.
"""
_FIELD_NAME = re.compile(rb"^(data|event):(?! )", re.MULTILINE)


@dataclass(slots=True)
class ClientAnswer:
    """An answer as a client reads it from a whole response or from a stream.

    calls: name and arguments (JSON text) of each tool call.
    reason: `stop`, `length`, `calls`, or another finish reason of the API; None if
        there is none.
    prompt_tokens, output_tokens: counts of the usage; None if there is none.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One API that generates text.

    source: URL of the reference.
    build: builds a request body from the model, the prompt and the limit of output
        tokens.
    read: reads an answer's object.
    fold: reads a stream's bytes.
    judge: checks the form of a stream. Raises Violation.
    judge_object: checks the form of an answer's object. Raises Violation.
    check_error: checks the form of an error's body. Raises Violation.
    limit, prompt, stop: names of the request fields; `stop` is None if there is none.
    stream_options: request fields that a stream needs besides `stream`.
    stream_type: Content-Type of a stream.
    """

    name: str
    path: str
    source: str
    build: Callable[[str, str, int], Json]
    read: Callable[[Json], ClientAnswer]
    fold: Callable[[bytes], ClientAnswer]
    judge: Callable[[bytes], object]
    judge_object: Callable[[Json], object]
    check_error: Callable[[Json], object]
    limit: str
    prompt: str
    stop: str | None = None
    stream_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stream_type: str = "text/event-stream"
    is_ollama: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a list of messages to which the server's template is
        applied.
        """
        return self.name in ("chat", "responses", "messages", "ollama-chat")

    def ask(self, model: str, prompt: str, limit: int = 32, **fields: Any) -> Json:
        """Build a request that is as deterministic as the API allows: temperature 0,
        and a seed if there is one.
        """
        body = self.build(model, prompt, limit)
        if self.is_ollama:
            options = {
                "temperature": 0,
                "seed": 1,
                **body.pop("options", {}),
                **fields.pop("options", {}),
            }
            return {**body, "stream": False, "options": options, **fields}
        # Responses and Messages have no seed, and servers may reject unknown fields.
        seed = {} if self.name in ("responses", "messages") else {"seed": 1}
        return {**body, "temperature": 0, **seed, **fields}

    def ask_stream(self, model: str, prompt: str, limit: int = 32, **fields: Any) -> Json:
        return {**self.ask(model, prompt, limit, **fields), "stream": True, **self.stream_options}


def normalize_sse(data: bytes) -> bytes:
    """Rewrite a stream of server-sent events with `\\n` and a space after each colon,
    as `conformance` expects.
    """
    return _FIELD_NAME.sub(rb"\1: ", data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


@dataclass(frozen=True, slots=True)
class SseEvent:
    name: str | None
    data: str


def parse_sse(data: bytes) -> list[SseEvent]:
    """Parse server-sent events with any line ending. See
    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    events: list[SseEvent] = []
    for block in normalize_sse(data).decode(errors="replace").split("\n\n"):
        fields = [
            line.partition(":") for line in block.split("\n") if line and not line.startswith(":")
        ]
        texts = [value.removeprefix(" ") for name, _, value in fields if name == "data"]
        names = [value.removeprefix(" ") for name, _, value in fields if name == "event"]
        if texts:
            events.append(SseEvent(names[-1] if names else None, "\n".join(texts)))
    return events


def parse_chunks(data: bytes) -> list[Json]:
    """Parse the JSON objects of server-sent events, without `[DONE]`. Raises Violation."""
    return [_parse(event.data) for event in parse_sse(data) if event.data != "[DONE]"]


def parse_lines(data: bytes) -> list[Json]:
    """Parse the objects of a stream of JSON Lines. Raises Violation."""
    return [_parse(line) for line in data.decode(errors="replace").splitlines() if line.strip()]


def _parse(text: str) -> Json:
    try:
        return require_object(json.loads(text), "an event")
    except ValueError as error:
        raise Violation(f"an event is not JSON: {error}: {text[:60]!r}") from None


def _normalize(reason: object) -> str | None:
    return None if reason is None else REASONS.get(str(reason), str(reason))


def read_chat(reply: Json, index: int = 0) -> ClientAnswer:
    choice = reply["choices"][index]
    message = choice["message"]
    usage = get_object(reply, "usage")
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in get_objects(message, "tool_calls")
    ]
    return ClientAnswer(
        message.get("content") or "",
        message.get("reasoning_content") or message.get("reasoning") or "",
        calls,
        _normalize(choice["finish_reason"]),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
    )


def fold_chat(data: bytes, index: int = 0) -> ClientAnswer:
    """Accumulate one choice of a stream as openai-python does: deltas of a call belong
    together by their index.
    """
    answer = ClientAnswer()
    calls = dict[int, list[str]]()
    for chunk in parse_chunks(data):
        _raise_error(chunk)
        _read_usage(answer, chunk.get("usage"), "prompt_tokens", "completion_tokens")
        for choice in get_objects(chunk, "choices"):
            # Some servers omit the index if there is only one choice.
            if choice.get("index", 0) != index:
                continue
            delta = get_object(choice, "delta")
            answer.text += delta.get("content") or ""
            answer.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for call in get_objects(delta, "tool_calls"):
                function = get_object(call, "function")
                name_and_arguments = calls.setdefault(call["index"], ["", ""])
                # Appended as in the SDK: a name that is sent twice becomes a doubled
                # name.
                name_and_arguments[0] += function.get("name") or ""
                name_and_arguments[1] += function.get("arguments") or ""
            answer.reason = _normalize(choice.get("finish_reason")) or answer.reason
    answer.calls = [(name, arguments) for name, arguments in calls.values()]
    return answer


def read_completion(reply: Json) -> ClientAnswer:
    choice = reply["choices"][0]
    usage = get_object(reply, "usage")
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return ClientAnswer(choice["text"], "", [], _normalize(choice["finish_reason"]), *counts)


def fold_completion(data: bytes) -> ClientAnswer:
    answer = ClientAnswer()
    for chunk in parse_chunks(data):
        _raise_error(chunk)
        _read_usage(answer, chunk.get("usage"), "prompt_tokens", "completion_tokens")
        for choice in get_objects(chunk, "choices"):
            if choice.get("index", 0) == 0:
                answer.text += choice.get("text") or ""
                answer.reason = _normalize(choice.get("finish_reason")) or answer.reason
    return answer


def read_response(reply: Json) -> ClientAnswer:
    require(reply.get("status") != "failed", f"the response failed: {reply.get('error')}")
    answer = ClientAnswer(
        reason=_normalize(get_object(reply, "incomplete_details").get("reason") or reply["status"])
    )
    for item in reply["output"]:
        match item["type"]:
            case "message":
                answer.text += "".join(part.get("text", "") for part in item["content"])
            case "reasoning":
                parts = [*(get_objects(item, "summary")), *(get_objects(item, "content"))]
                answer.reasoning += "".join(part.get("text", "") for part in parts)
            case "function_call":
                answer.calls.append((item["name"], item["arguments"]))
            case _:
                pass
    _read_usage(answer, reply.get("usage"), "input_tokens", "output_tokens")
    return answer


def fold_response(data: bytes) -> ClientAnswer:
    """Accumulate the deltas of a stream; usage and status come from the terminal event.
    Raises Violation.
    """
    answer = ClientAnswer()
    names = dict[int, str]()
    arguments = dict[int, str]()
    for event in parse_chunks(data):
        kind = event.get("type")
        match kind:
            # Only this event has the call's name; its deltas refer to it by
            # `output_index`.
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                names[event["output_index"]] = event["item"]["name"]
            case "response.output_text.delta":
                answer.text += event["delta"]
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                answer.reasoning += event["delta"]
            case "response.function_call_arguments.delta":
                index = event["output_index"]
                arguments[index] = arguments.get(index, "") + event["delta"]
            case "response.completed" | "response.incomplete" | "response.failed":
                last = read_response(event["response"])
                answer.reason = last.reason
                answer.prompt_tokens = last.prompt_tokens
                answer.output_tokens = last.output_tokens
            case "error":
                raise Violation(f"the stream fails: {event}")
            case _:
                pass
    answer.calls = [(name, arguments.get(index, "")) for index, name in names.items()]
    return answer


def read_message(reply: Json) -> ClientAnswer:
    answer = ClientAnswer(reason=_normalize(reply["stop_reason"]))
    for block in reply["content"]:
        match block["type"]:
            case "text":
                answer.text += block["text"]
            case "thinking":
                answer.reasoning += block["thinking"]
            case "tool_use":
                answer.calls.append((block["name"], json.dumps(block["input"])))
            case _:
                pass
    _read_message_usage(answer, reply.get("usage"))
    return answer


def fold_message(data: bytes) -> ClientAnswer:
    """Accumulate a stream as anthropic-python does, which drops events without a name.
    Raises Violation.
    """
    answer = ClientAnswer()
    calls = dict[int, list[str]]()
    for named in parse_sse(data):
        if named.name is None:
            continue
        event = _parse(named.data)
        match event.get("type"):
            case "message_start":
                _read_message_usage(answer, event["message"].get("usage"))
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                calls[event["index"]] = [event["content_block"]["name"], ""]
            case "content_block_delta":
                delta = event["delta"]
                answer.text += delta.get("text", "")
                answer.reasoning += delta.get("thinking", "")
                if delta.get("type") == "input_json_delta":
                    calls[event["index"]][1] += delta["partial_json"]
            case "message_delta":
                answer.reason = _normalize(event["delta"].get("stop_reason"))
                _read_message_usage(answer, event.get("usage"))
            case "error":
                raise Violation(f"the stream fails: {event.get('error')}")
            case _:
                pass
    answer.calls = [(name, json.dumps(json.loads(text or "{}"))) for name, text in calls.values()]
    return answer


def read_ollama(reply: Json) -> ClientAnswer:
    message = get_object(reply, "message")
    calls = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"]))
        for call in get_objects(message, "tool_calls")
    ]
    return ClientAnswer(
        message.get("content", "") if "message" in reply else reply.get("response", ""),
        message.get("thinking") or reply.get("thinking") or "",
        calls,
        _normalize(reply.get("done_reason")),
        reply.get("prompt_eval_count"),
        reply.get("eval_count"),
    )


def fold_ollama(data: bytes) -> ClientAnswer:
    answer = ClientAnswer()
    for line in parse_lines(data):
        _raise_error(line)
        piece = read_ollama(line)
        answer.text += piece.text
        answer.reasoning += piece.reasoning
        answer.calls += piece.calls
        answer.reason = piece.reason or answer.reason
        answer.prompt_tokens = (
            piece.prompt_tokens if piece.prompt_tokens is not None else answer.prompt_tokens
        )
        answer.output_tokens = (
            piece.output_tokens if piece.output_tokens is not None else answer.output_tokens
        )
    return answer


def _raise_error(event: Json) -> None:
    require(not event.get("error"), f"the stream fails: {event.get('error')}")


def _read_usage(answer: ClientAnswer, usage: Json | None, prompt: str, output: str) -> None:
    if usage:
        answer.prompt_tokens = usage.get(prompt)
        answer.output_tokens = usage.get(output)


def _read_message_usage(answer: ClientAnswer, usage: Json | None) -> None:
    """Set the token counts. Anthropic's input_tokens excludes tokens read from the
    cache or written to it.
    """
    if not usage:
        return
    if usage.get("input_tokens") is not None:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        answer.prompt_tokens = sum(usage.get(name) or 0 for name in names)
    answer.output_tokens = usage.get("output_tokens", answer.output_tokens)


def check_openai_error(body: Json) -> None:
    """Check an error body of OpenAI's APIs. Raises Violation."""
    checks.check_error(body.get("error"))


def check_error_basics(body: Json) -> None:
    """Check that an error body has a message: `error.message`, or Ollama's `error`
    string. Raises Violation.
    """
    error: Any = body.get("error")
    message: object = cast(Json, error).get("message") if isinstance(error, dict) else error
    require(
        isinstance(message, str) and message,
        f"the body is not an error of this API: {str(body)[:200]}",
    )


def check_ollama_error(body: Json) -> None:
    """Check an error body of Ollama's API. Raises Violation."""
    require(require_string(body.get("error"), "error"), "error is empty")


def _build_chat(model: str, prompt: str, limit: int) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": limit}


OPENAI_DOCS = "https://platform.openai.com/docs/api-reference"
CHAT = Dialect(
    name="chat",
    path="/v1/chat/completions",
    source=f"{OPENAI_DOCS}/chat",
    build=_build_chat,
    read=read_chat,
    fold=fold_chat,
    judge=lambda data: chat.check_stream(
        normalize_sse(data), include_usage=True, allow_variants=True
    ),
    judge_object=chat.check_object,
    check_error=check_openai_error,
    limit="max_tokens",
    prompt="messages",
    stop="stop",
    stream_options={"stream_options": {"include_usage": True}},
)
COMPLETIONS = Dialect(
    name="completions",
    path="/v1/completions",
    source=f"{OPENAI_DOCS}/completions",
    build=lambda model, prompt, limit: {"model": model, "prompt": prompt, "max_tokens": limit},
    read=read_completion,
    fold=fold_completion,
    judge=lambda data: completions.check_stream(
        normalize_sse(data), include_usage=True, allow_variants=True
    ),
    judge_object=completions.check_object,
    check_error=check_openai_error,
    limit="max_tokens",
    prompt="prompt",
    stop="stop",
    stream_options={"stream_options": {"include_usage": True}},
)
RESPONSES = Dialect(
    name="responses",
    path="/v1/responses",
    source=f"{OPENAI_DOCS}/responses",
    build=lambda model, prompt, limit: {
        "model": model,
        "input": prompt,
        # OpenAI's minimum is 16.
        "max_output_tokens": max(limit, 16),
        # Do not leave responses of checks on the server.
        "store": False,
    },
    read=read_response,
    fold=fold_response,
    judge=lambda data: responses.check_stream(normalize_sse(data), allow_variants=True),
    judge_object=lambda reply: responses.check_object(reply, allow_variants=True),
    check_error=check_openai_error,
    limit="max_output_tokens",
    prompt="input",
)
MESSAGES = Dialect(
    name="messages",
    path="/v1/messages",
    source="https://docs.anthropic.com/en/api/messages",
    build=_build_chat,
    read=read_message,
    fold=fold_message,
    judge=lambda data: anthropic.check_stream(normalize_sse(data)),
    judge_object=anthropic.check_object,
    check_error=anthropic.check_error,
    limit="max_tokens",
    prompt="messages",
    stop="stop_sequences",
)
OLLAMA_CHAT = Dialect(
    name="ollama-chat",
    path="/api/chat",
    source="https://github.com/ollama/ollama/blob/main/docs/api.md",
    build=lambda model, prompt, limit: {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "options": {"num_predict": limit},
    },
    read=read_ollama,
    fold=fold_ollama,
    judge=lambda data: ollama.check_stream(data, is_chat=True),
    judge_object=lambda reply: ollama.check_object(reply, is_chat=True),
    check_error=check_ollama_error,
    limit="num_predict",
    prompt="messages",
    stop="stop",
    stream_type="application/x-ndjson",
    is_ollama=True,
)
OLLAMA_GENERATE = Dialect(
    name="ollama-generate",
    path="/api/generate",
    source="https://github.com/ollama/ollama/blob/main/docs/api.md",
    build=lambda model, prompt, limit: {
        "model": model,
        "prompt": prompt,
        "options": {"num_predict": limit},
    },
    read=read_ollama,
    fold=fold_ollama,
    judge=lambda data: ollama.check_stream(data, is_chat=False),
    judge_object=lambda reply: ollama.check_object(reply, is_chat=False),
    check_error=check_ollama_error,
    limit="num_predict",
    prompt="prompt",
    stop="stop",
    stream_type="application/x-ndjson",
    is_ollama=True,
)
DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)
