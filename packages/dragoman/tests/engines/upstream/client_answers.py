"""What a client of each dialect sees of one answer, whole or folded from a stream, in
one form for all dialects.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx2

from dragoman_check.rules import anthropic as anthropic_rules
from dragoman_check.rules import chat as chat_rules
from dragoman_check.rules import gemini as gemini_rules
from dragoman_check.rules import ollama as ollama_rules
from dragoman_check.rules import responses as responses_rules

HI = [{"role": "user", "content": "Say hi, please."}]


class Answer(NamedTuple):
    """An answer. calls: the name of each, and its arguments as JSON text.

    reason: `stop`, `length` or `content_filter`.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reason: str = "stop"


class Failure(NamedTuple):
    """An error in the dialect's own envelope. message: a part of its message.

    code: its code in dialects of OpenAI, if it matters.
    """

    message: str = ""
    code: str | None = None


class Dialect(NamedTuple):
    """How to ask in one dialect.

    read_whole, read_stream: return the answer or the failure.
    stream_path: the path of streams; None for the same path with a field `stream`.
    """

    path: str
    body: dict[str, Any]
    read_whole: Callable[[dict[str, Any]], Answer | Failure]
    read_stream: Callable[[bytes], Answer | Failure]
    stream_path: str | None = None


async def ask(client: httpx2.AsyncClient, dialect: Dialect) -> tuple[Answer | Failure, ...]:
    """Ask for a whole answer and for a stream."""
    outcomes: list[Answer | Failure] = []
    for stream in (False, True):
        if dialect.stream_path is None:
            response = await client.post(dialect.path, json={**dialect.body, "stream": stream})
        else:
            path = dialect.stream_path if stream else dialect.path
            response = await client.post(path, json=dialect.body)
        is_stream = stream and response.status_code == 200
        if response.status_code != 200:
            outcomes.append(read_error(response.json()))
        elif is_stream:
            outcomes.append(dialect.read_stream(response.content))
        else:
            outcomes.append(dialect.read_whole(response.json()))
    return tuple(outcomes)


def read_error(body: dict[str, Any]) -> Failure:
    error = body["error"]
    if isinstance(error, str):
        return Failure(error)
    return Failure(error["message"], error.get("code"))


def normalize(arguments: Any) -> str:
    """Return arguments as canonical JSON text; what is not JSON stays as it is."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return json.dumps(value, sort_keys=True)


def read_data(stream: bytes) -> list[dict[str, Any]]:
    lines = [line for line in stream.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line[6:]) for line in lines]


def read_chat(body: dict[str, Any]) -> Answer | Failure:
    (choice,) = body["choices"]
    return fold_chat([{**choice, "delta": choice["message"]}])


def read_chat_stream(stream: bytes) -> Answer | Failure:
    chunks = read_data(stream)
    if "error" in chunks[-1]:
        return read_error(chunks[-1])
    chat_rules.check_stream(stream, include_usage=False)
    return fold_chat([choice for chunk in chunks for choice in chunk["choices"]])


def fold_chat(choices: list[dict[str, Any]]) -> Answer:
    texts = {"content": "", "reasoning": "", "refusal": ""}
    calls: list[list[str]] = []
    for choice in choices:
        delta = choice["delta"]
        for field in texts:
            texts[field] += delta.get(field) or ""
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                calls.append([call["function"]["name"], ""])
            calls[-1][1] += call["function"].get("arguments") or ""
    reason = choices[-1]["finish_reason"]
    assert (reason == "tool_calls") is (bool(calls) and reason not in ("length", "content_filter"))
    return Answer(
        texts["content"],
        texts["reasoning"],
        texts["refusal"],
        tuple((name, normalize(arguments)) for name, arguments in calls),
        "stop" if reason == "tool_calls" else reason,
    )


def read_responses(body: dict[str, Any]) -> Answer | Failure:
    if body["status"] == "failed":
        return Failure(body["error"]["message"], body["error"]["code"])
    texts = {"output_text": "", "reasoning": "", "refusal": ""}
    calls: list[tuple[str, str]] = []
    for item in body["output"]:
        match item["type"]:
            case "message":
                for part in item["content"]:
                    texts[part["type"]] += part.get("text") or part.get("refusal") or ""
            case "reasoning":
                parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
                texts["reasoning"] += "".join(part["text"] for part in parts)
            case _:
                calls.append((item["name"], normalize(item["arguments"])))
    details: dict[str, Any] = body.get("incomplete_details") or {}
    reasons = {None: "stop", "max_output_tokens": "length", "content_filter": "content_filter"}
    return Answer(
        texts["output_text"],
        texts["reasoning"],
        texts["refusal"],
        tuple(calls),
        reasons[details.get("reason")],
    )


def read_responses_stream(stream: bytes) -> Answer | Failure:
    events = responses_rules.check_stream(stream, requires_usage=False)
    last = events[-1]
    # The code in `response.failed` is one of OpenAI's few.
    for event in events:
        if event["type"] == "error":
            assert last["type"] == "response.failed"
            return read_error(event)
    deltas = {"output_text": "", "reasoning_text": "", "refusal": ""}
    for event in events:
        name = event["type"].removeprefix("response.").removesuffix(".delta")
        if event["type"].endswith(".delta") and name in deltas:
            deltas[name] += event["delta"]
    answer = read_responses(last["response"])
    if isinstance(answer, Answer):
        assert deltas["output_text"] == answer.text
        assert deltas["refusal"] == answer.refusal
        assert deltas["reasoning_text"] in (answer.reasoning, "")
    return answer


def read_messages(body: dict[str, Any]) -> Answer | Failure:
    text = ""
    reasoning = ""
    calls: list[tuple[str, str]] = []
    for block in body["content"]:
        match block["type"]:
            case "text":
                text += block["text"]
            case "thinking":
                reasoning += block["thinking"]
            case "redacted_thinking":
                pass
            case _:
                calls.append((block["name"], normalize(block["input"])))
    reasons = {
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "refusal": "content_filter",
    }
    reason = reasons.get(body["stop_reason"], "stop")
    assert (body["stop_reason"] == "tool_use") is (bool(calls) and reason == "stop")
    return Answer(text, reasoning, "", tuple(calls), reason)


def read_messages_stream(stream: bytes) -> Answer | Failure:
    events = read_data(stream)
    if events[-1]["type"] == "error":
        return read_error(events[-1])
    anthropic_rules.check_stream(stream)
    blocks: list[dict[str, Any]] = []
    body: dict[str, Any] = {"content": blocks}
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                delta = event["delta"]
                for field in ("text", "thinking"):
                    if field in delta:
                        blocks[-1][field] += delta[field]
                blocks[-1]["json"] += delta.get("partial_json", "")
            case "message_delta":
                body["stop_reason"] = event["delta"]["stop_reason"]
            case _:
                pass
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = block["json"] or "{}"
    return read_messages(body)


def read_ollama(body: dict[str, Any]) -> Answer | Failure:
    return fold_ollama([body])


def read_ollama_stream(stream: bytes) -> Answer | Failure:
    ollama_rules.check_stream(stream, is_chat=True)
    lines = [json.loads(line) for line in stream.decode().split("\n") if line]
    if "error" in lines[-1]:
        return read_error(lines[-1])
    return fold_ollama(lines)


def fold_ollama(lines: list[dict[str, Any]]) -> Answer:
    messages = [line["message"] for line in lines]
    calls = [
        (call["function"]["name"], normalize(call["function"]["arguments"]))
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
    return Answer(
        "".join(message.get("content") or "" for message in messages),
        "".join(message.get("thinking") or "" for message in messages),
        "",
        tuple(calls),
        lines[-1]["done_reason"],
    )


def read_gemini(body: dict[str, Any]) -> Answer | Failure:
    return fold_gemini([body])


def read_gemini_stream(stream: bytes) -> Answer | Failure:
    chunks = read_data(stream)
    if "error" in chunks[-1]:
        return read_error(chunks[-1])
    return fold_gemini(gemini_rules.check_stream(stream))


def fold_gemini(chunks: list[dict[str, Any]]) -> Answer:
    candidates = [chunk["candidates"][0] for chunk in chunks]
    parts = [part for candidate in candidates for part in candidate["content"]["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    texts = [part for part in parts if "text" in part]
    reasons = {"MAX_TOKENS": "length", "SAFETY": "content_filter"}
    return Answer(
        "".join(part["text"] for part in texts if not part.get("thought")),
        "".join(part["text"] for part in texts if part.get("thought")),
        "",
        tuple((call["name"], normalize(json.dumps(call["args"]))) for call in calls),
        reasons.get(candidates[-1]["finishReason"], "stop"),
    )


FUNCTIONS = ("add", "get_weather")
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
FUNCTION_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in FUNCTIONS
]
DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions",
        {"model": "m", "messages": HI, "tools": FUNCTION_TOOLS},
        read_chat,
        read_chat_stream,
    ),
    "responses": Dialect(
        "/v1/responses",
        {
            "model": "m",
            "input": HI,
            "tools": [
                {"type": "function", "name": name, "parameters": PARAMETERS} for name in FUNCTIONS
            ],
        },
        read_responses,
        read_responses_stream,
    ),
    "messages": Dialect(
        "/v1/messages",
        {
            "model": "m",
            "max_tokens": 100,
            "messages": HI,
            "tools": [{"name": name, "input_schema": PARAMETERS} for name in FUNCTIONS],
        },
        read_messages,
        read_messages_stream,
    ),
    "ollama": Dialect(
        "/api/chat",
        {"model": "m", "messages": HI, "tools": FUNCTION_TOOLS},
        read_ollama,
        read_ollama_stream,
    ),
    "gemini": Dialect(
        "/v1beta/models/m:generateContent",
        {
            "contents": [{"role": "user", "parts": [{"text": HI[0]["content"]}]}],
            "tools": [
                {
                    "functionDeclarations": [
                        {"name": name, "parametersJsonSchema": PARAMETERS} for name in FUNCTIONS
                    ]
                }
            ],
            "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        },
        read_gemini,
        read_gemini_stream,
        "/v1beta/models/m:streamGenerateContent?alt=sse",
    ),
}
