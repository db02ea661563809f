"""Upstreams with Anthropic's Messages API: requests are encoded, and event sequences
are parsed.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import msgspec
import pytest
from tests.engines.upstream.relays import build_engine
from tests.engines.upstream.stub_server import Handle, Pieces, far_server
from tests.http_transport import FakeTransport

from dragoman.core.errors import (
    ContextTooLong,
    DragomanError,
    EngineError,
    Overloaded,
    RateLimited,
    Unsupported,
)
from dragoman.core.event_grammar import check_events
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import (
    CustomTool,
    File,
    FunctionTool,
    Image,
    InlineMedia,
    Message,
    Part,
    Reasoning,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from dragoman.core.request import (
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    SamplingOptions,
    TemplateOptions,
)
from dragoman.dialects.anthropic import read_messages
from dragoman.dialects.interfaces import ReaderOptions
from dragoman.engines.upstream import KINDS, Upstream, UpstreamDefaults, discover
from dragoman.engines.upstream.messages_events import MessageEventReader
from dragoman.engines.upstream.messages_request import encode_messages_request
from tests.pictures import PIXEL

ADD = FunctionTool("add", "Adds", '{"type":"object","properties":{}}', True)
MULTIPLY = FunctionTool("multiply")
KIND = KINDS["anthropic"]


def encode(request: GenerateRequest, defaults: UpstreamDefaults | None = None) -> dict[str, Any]:
    return json.loads(
        encode_messages_request(request, KIND, "there", defaults or UpstreamDefaults()).body
    )


def ask(*parts: Part, **fields: Any) -> GenerateRequest:
    conversation = {
        name: fields.pop(name) for name in tuple(fields) if name in Conversation.__struct_fields__
    }
    return GenerateRequest(
        "m", Conversation((Message(Role.USER, parts or (Text("hi"),)),), **conversation), **fields
    )


def test_encode_request_adds_required_fields() -> None:
    request = ask()
    encoded = encode_messages_request(request, KIND, "there", UpstreamDefaults())
    assert json.loads(encoded.body) == {
        "model": "there",
        "max_tokens": 8192,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }
    assert encoded.warnings == ("max_tokens: the upstream requires a limit; it is 8192",)
    assert encode(request, UpstreamDefaults(max_tokens=64_000))["max_tokens"] == 64_000


def test_encode_maps_limits_and_sampling() -> None:
    sampling = SamplingOptions(temperature=0.5, top_p=0.9, top_k=5, seed=3)
    body = encode(ask(sampling=sampling, limits=GenerationLimits(max_tokens=9, stop=("END",))))
    assert {name: body[name] for name in ("temperature", "top_p", "top_k", "max_tokens")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 9,
    }
    assert body["stop_sequences"] == ["END"]
    assert "seed" not in body
    assert "top_k" not in encode(ask(sampling=SamplingOptions(top_k=0)))


def test_encode_puts_leading_instructions_in_system_field() -> None:
    conversation = Conversation(
        (
            Message(Role.SYSTEM, (Text("Be kind."),)),
            Message(Role.DEVELOPER, (Text("Be brief."),)),
            Message(Role.USER, (Text("a"),)),
            Message(Role.USER, (Text("b"), Text(""), Text(" \n"))),
            Message(Role.SYSTEM, (Text("Be loud."),)),
            Message(Role.USER, (Text("c"),), "ann"),
        )
    )
    encoded = encode_messages_request(
        GenerateRequest("m", conversation), KIND, "there", UpstreamDefaults()
    )
    body = json.loads(encoded.body)
    assert body["system"] == [
        {"type": "text", "text": "Be kind."},
        {"type": "text", "text": "Be brief."},
    ]
    texts = [
        (turn["role"], [block["text"] for block in turn["content"]]) for turn in body["messages"]
    ]
    assert texts == [("user", ["a", "b"]), ("system", ["Be loud."]), ("user", ["c"])]
    assert any("names of participants" in warning for warning in encoded.warnings)


def test_encode_converts_media_to_blocks() -> None:
    (turn,) = encode(
        ask(
            Image(InlineMedia(PIXEL, "image/png"), "low"),
            Image(RemoteMedia("https://x/y")),
            File(InlineMedia(b"%PDF", "application/pdf"), "a.pdf"),
            File(InlineMedia("é".encode(), "text/markdown")),
            File(RemoteMedia("https://x/z.pdf")),
        )
    )["messages"]
    kinds = [(block["type"], block["source"]["type"]) for block in turn["content"]]
    assert kinds == [
        ("image", "base64"), ("image", "url"), ("document", "base64"), ("document", "text"),
        ("document", "url"),
    ]  # fmt: skip
    assert turn["content"][2]["title"] == "a.pdf"
    assert turn["content"][3]["source"]["data"] == "é"
    with pytest.raises(Unsupported, match="PDF and text"):
        encode(ask(File(InlineMedia(b"\xff", "image/tiff"))))


SEALED = Reasoning("hm", seal="anthropic:c2ln")
REDACTED = Reasoning("", seal="anthropic-redacted:ZGF0YQ==")
LOOP = Conversation(
    (
        Message(Role.USER, (Text("hi"),)),
        Message(
            Role.ASSISTANT,
            (
                SEALED,
                REDACTED,
                Text("I add."),
                ToolCall("call.1", "add", '{"a":1.0}'),
                ToolCall("c2", "add", "{"),
            ),
        ),
        Message(
            Role.TOOL,
            (ToolResult("call.1", (Text("1"), Image(InlineMedia(PIXEL, "image/png")))),),
            "add",
        ),
        Message(Role.TOOL, (ToolResult("c2", (Text("bad"),), is_error=True),), "add"),
    ),
    (ADD, MULTIPLY),
)


def test_encode_tool_loop_keeps_thinking_and_block_order() -> None:
    body = encode(GenerateRequest("m", LOOP))
    assert body["tools"] == [
        {
            "name": "add",
            "description": "Adds",
            "input_schema": {"type": "object", "properties": {}},
            "strict": True,
        },
        {"name": "multiply", "input_schema": {"type": "object"}},
    ]
    _, assistant, user = body["messages"]
    assert assistant["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "text", "text": "I add."},
        {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1.0}},
        {"type": "tool_use", "id": "c2", "name": "add", "input": {"INVALID_JSON": "{"}},
    ]
    first, second = user["content"]
    assert (first["type"], first["tool_use_id"], len(first["content"])) == (
        "tool_result",
        "call_1",
        2,
    )
    assert (second["is_error"], second["cache_control"]) == (True, {"type": "ephemeral"})


def test_encode_messages_api_request_roundtrip_is_unchanged() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "text", "text": "I add."},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
    ]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "text", "text": "1"}],
        }
    ]
    sent = {
        "model": "there",
        "max_tokens": 2000,
        "stream": True,
        "system": [{"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": content},
            {"role": "user", "content": results},
        ],
        "tools": [{"name": "add", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
        "output_config": {
            "effort": "high",
            "format": {"type": "json_schema", "schema": {"type": "object"}},
        },
        "stop_sequences": ["END"],
        "temperature": 1.0,
    }
    call = read_messages(json.dumps(sent).encode(), ReaderOptions(keeps_seal=True))
    found = encode(call.requests[0])
    found["messages"][2]["content"][0].pop("cache_control")
    found["system"][0].pop("cache_control")
    assert found == sent


@pytest.mark.parametrize(
    ("options", "thinking", "effort"),
    [
        (ReasoningOptions(), None, None),
        (ReasoningOptions(enabled=False), {"type": "disabled"}, None),
        (ReasoningOptions(effort="none"), {"type": "disabled"}, None),
        (ReasoningOptions(budget=0), {"type": "disabled"}, None),
        (ReasoningOptions(enabled=True), {"type": "adaptive", "display": "summarized"}, None),
        (ReasoningOptions(effort="minimal"), {"type": "adaptive", "display": "summarized"}, "low"),
        (ReasoningOptions(True, "max"), {"type": "adaptive", "display": "summarized"}, "max"),
        (
            ReasoningOptions(budget=2048),
            {"type": "enabled", "budget_tokens": 2048, "display": "summarized"},
            None,
        ),
    ],
)
def test_encode_maps_reasoning_to_thinking_and_effort(
    options: ReasoningOptions, thinking: object, effort: str | None
) -> None:
    body = encode(ask(reasoning=options))
    assert body.get("thinking") == thinking
    assert body.get("output_config", {}).get("effort") == effort
    # The limit includes the thinking.
    assert body["max_tokens"] == 8192 + (options.budget or 0)


def test_encode_turn_without_signature_drops_thinking_budget() -> None:
    unsigned = Message(Role.ASSISTANT, (Reasoning("hm"), ToolCall("c", "add", "{}")))
    messages = (LOOP.messages[0], unsigned, Message(Role.TOOL, (ToolResult("c", (Text("1"),)),)))
    for conversation, has_thinking in (
        (LOOP, True),
        (msgspec.structs.replace(LOOP, messages=messages), False),
    ):
        thinking = msgspec.structs.replace(conversation, reasoning=ReasoningOptions(budget=2048))
        encoded = encode_messages_request(
            GenerateRequest("m", thinking), KIND, "there", UpstreamDefaults()
        )
        assert ("thinking" in json.loads(encoded.body)) is has_thinking
        assert (
            any("thinking_token_budget is ignored" in warning for warning in encoded.warnings)
            is not has_thinking
        )
        assert (
            any("reasoning without a signature" in warning for warning in encoded.warnings)
            is not has_thinking
        )


@pytest.mark.parametrize(
    ("choice", "parallel", "encoded", "count"),
    [
        (ToolChoice(), True, None, 2),
        (ToolChoice(), False, {"type": "auto", "disable_parallel_tool_use": True}, 2),
        (ToolChoice("required"), True, {"type": "any"}, 2),
        (ToolChoice("none"), False, {"type": "none"}, 2),
        (ToolChoice("required", ("add",), is_named=True), True, {"type": "tool", "name": "add"}, 2),
        (ToolChoice("required", ("add",)), True, {"type": "any"}, 1),
    ],
)
def test_encode_maps_tool_choice(
    choice: ToolChoice, parallel: bool, encoded: object, count: int
) -> None:
    body = encode(ask(tools=(ADD, MULTIPLY), tool_choice=choice, parallel_tool_calls=parallel))
    assert body.get("tool_choice") == encoded
    assert len(body["tools"]) == count


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (GenerateRequest("m", "Once"), "prompt"),
        (ask(tools=(CustomTool("run"),)), "tools"),
        (
            ask(limits=GenerationLimits(stop=("a",), include_stop=True)),
            "include_stop_str_in_output",
        ),
        (ask(special_tokens_in_text=True), "skip_special_tokens"),
        (ask(template=TemplateOptions(template="{{ x }}")), "chat_template"),
        (ask(template=TemplateOptions(add_generation_prompt=False)), "add_generation_prompt"),
    ],
)
def test_encode_unsupported_parameter_raises_with_param(
    request_: GenerateRequest, param: str
) -> None:
    with pytest.raises(Unsupported) as found:
        encode(request_)
    assert found.value.param == param


def test_encode_maps_json_schema_to_output_format() -> None:
    body = encode(ask(constraint=JsonSchema('{"type":"object"}')))
    assert body["output_config"] == {
        "format": {"type": "json_schema", "schema": {"type": "object"}}
    }


# The events.

START = {
    "type": "message_start",
    "message": {
        "usage": {
            "input_tokens": 5,
            "cache_read_input_tokens": 30,
            "cache_creation_input_tokens": 4,
            "output_tokens": 1,
        }
    },
}
PING = {"type": "ping"}
STOP = {"type": "message_stop"}


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def finish(reason: str = "end_turn", **fields: Any) -> dict[str, Any]:
    stop = {"stop_reason": reason, "stop_sequence": fields.pop("stop_sequence", None)}
    return {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 9, **fields}}


def read(*events: dict[str, Any]) -> list[Event]:
    reader = MessageEventReader()
    found = [
        event for wire_event in events for event in reader.read(json.dumps(wire_event).encode())
    ]
    return list(check_events([*found, *reader.close()]))


TEXT = (begin(0, type="text", text=""), delta(0, type="text_delta", text="Hello"), end(0))
STARTED = Started(39, 30, written_tokens=4)


def test_read_text_stream_returns_events() -> None:
    end_event = finish("end_turn", output_tokens_details={"thinking_tokens": 3})
    assert read(START, PING, *TEXT, end_event, PING, STOP) == [
        STARTED,
        TextDelta(0, "Hello"),
        ChoiceFinished(0, FinishReason.STOP),
        Finished(Usage(39, 9, 30, 3, 4)),
    ]


def test_read_zeros_keeps_known_usage() -> None:
    zeros = dict.fromkeys(
        ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), 0
    )
    assert read(START, *TEXT, finish(**zeros), STOP)[-1] == Finished(Usage(39, 9, 30, None, 4))
    assert read(START, *TEXT, finish(input_tokens=0), STOP)[-1] == Finished(
        Usage(39, 9, 30, None, 4)
    )


def test_read_thinking_returns_signatures_and_redacted_data() -> None:
    thinking = (
        begin(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="h"),
        delta(0, type="thinking_delta", thinking="m"),
        delta(0, type="signature_delta", signature="c2ln"),
        end(0),
    )
    omitted = (
        begin(2, type="thinking", thinking="", signature=""),
        delta(2, type="signature_delta", signature="x"),
    )
    events = read(
        START,
        *thinking,
        begin(1, type="redacted_thinking", data="ZGF0YQ=="),
        end(1),
        *omitted,
        end(2),
        finish(),
        STOP,
    )
    assert events[1:-2] == [
        ReasoningDelta(0, "h"),
        ReasoningDelta(0, "m"),
        ReasoningDelta(0, "", seal="anthropic:c2ln"),
        ReasoningDelta(0, "", seal="anthropic-redacted:ZGF0YQ=="),
        ReasoningDelta(0, "", seal="anthropic:x"),
    ]


@pytest.mark.parametrize("place", ["content_block_stop", "message_delta", "message_stop"])
@pytest.mark.parametrize(
    ("start", "whole", "seal"),
    [
        (
            {"type": "thinking", "thinking": "hm"},
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            "anthropic:c2ln",
        ),
        (
            {"type": "redacted_thinking"},
            {"type": "redacted_thinking", "data": "c2ln"},
            "anthropic-redacted:c2ln",
        ),
    ],
)
def test_read_whole_block_keeps_its_signature(
    start: dict[str, Any], whole: dict[str, Any], seal: str, place: str
) -> None:
    fields = {"content_block": whole} if place == "content_block_stop" else {}
    message = {"message": {"content": [whole]}}
    events = read(
        START,
        begin(0, **start),
        {**end(0), **fields},
        {**finish(), **(message if place == "message_delta" else {})},
        {**STOP, **(message if place == "message_stop" else {})},
    )
    assert ReasoningDelta(0, "", seal=seal) in events


def use(index: int, input: object = None, *pieces: str) -> list[dict[str, Any]]:
    start = begin(index, type="tool_use", id=f"toolu_{index}", name="add", input=input or {})
    return [
        start,
        *(delta(index, type="input_json_delta", partial_json=piece) for piece in pieces),
        end(index),
    ]


def test_read_tool_use_collects_input_from_start_and_deltas() -> None:
    events = read(
        START,
        *use(0, None, "", '{"a":', "1}"),
        *use(1),
        *use(2, {"b": 2}),
        *use(3, None, ""),
        finish("tool_use"),
        STOP,
    )
    arguments = ["", "", "", ""]
    index = -1
    for event in events:
        index += isinstance(event, ToolCallStart)
        if isinstance(event, ToolCallDelta):
            arguments[index] += event.arguments
    assert [json.loads(text) for text in arguments] == [{"a": 1}, {}, {"b": 2}, {}]


def test_read_truncated_tool_use_has_no_arguments() -> None:
    events = read(START, *use(0), finish("max_tokens"), STOP)
    assert events[1:-1] == [
        ToolCallStart(0, "toolu_0", "add"),
        ChoiceFinished(0, FinishReason.LENGTH),
    ]


@pytest.mark.parametrize(
    ("reason", "expected", "stop"),
    [
        ("end_turn", FinishReason.STOP, None),
        ("tool_use", FinishReason.STOP, None),
        ("stop_sequence", FinishReason.STOP, "END"),
        ("max_tokens", FinishReason.LENGTH, None),
        ("model_context_window_exceeded", FinishReason.CONTEXT_LENGTH, None),
        ("refusal", FinishReason.CONTENT_FILTER, None),
    ],
)
def test_read_maps_stop_reasons(reason: str, expected: FinishReason, stop: str | None) -> None:
    assert read(START, *TEXT, finish(reason, stop_sequence=stop), STOP)[-2] == ChoiceFinished(
        0, expected, stop
    )


@pytest.mark.parametrize(
    "events",
    [
        (),
        (START,),
        (START, *TEXT[:2]),
        (START, *TEXT),
        (START, *TEXT, finish()),
        (START, *TEXT, STOP),
        (START, *TEXT, finish("pause_turn"), STOP),
        (START, *TEXT, finish("grown_tired"), STOP),
        TEXT,
        (START, TEXT[1]),
        (START, TEXT[0], delta(7, type="text_delta", text="x")),
        (START, finish(), *TEXT, STOP),
        (START, begin(0, type="tool_use", id="", name="add", input={})),
    ],
)
def test_read_incomplete_stream_raises(events: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(EngineError):
        read(*events)


def test_read_skips_unknown_events_and_blocks() -> None:
    search = (
        begin(0, type="server_tool_use", id="s", name="web_search", input={}),
        delta(0, type="new"),
        end(0),
    )
    assert (
        read({"type": "new_event", "index": [1]} | {"index": None}, START, *search, finish(), STOP)[
            0
        ]
        == STARTED
    )


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("overloaded_error", 503),
        ("rate_limit_error", 429),
        ("api_error", 500),
        ("timeout_error", 504),
    ],
)
@pytest.mark.parametrize("before", [(), (START,), (START, *TEXT[:2])])
def test_read_error_event_raises_with_status(
    kind: str, status: int, before: tuple[dict[str, Any], ...]
) -> None:
    with pytest.raises(DragomanError) as found:
        read(*before, {"type": "error", "error": {"type": kind, "message": "No."}})
    assert found.value.status == (500 if before and status == 429 else status)


# The connection.


def stream(*events: dict[str, Any] | Exception | None) -> httpx2.Response:
    pieces = [
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        if isinstance(event, dict)
        else event
        for event in events
    ]
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, stream=Pieces(*pieces)
    )


async def answer(handle: Handle, **config: Any) -> list[Event]:
    def with_health(request: httpx2.Request) -> httpx2.Response | None:
        return (
            httpx2.Response(200, json={"data": []}) if request.method == "GET" else handle(request)
        )

    async with far_server(with_health) as address:
        upstreams = tuple(Upstream(f"{address}/{name}/v1", key="sk-ant") for name in "ab")
        subject = build_engine(kind="anthropic", upstreams=upstreams, **config)
        await subject.start()
        try:
            return [event async for event in subject.generate(ask())]
        finally:
            await subject.stop()


async def test_api_key_is_sent_in_x_api_key_header() -> None:
    seen: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return stream(START, *TEXT, finish(), STOP)

    assert TextDelta(0, "Hello") in await answer(handle)
    (request,) = seen
    assert request.url.path.endswith("/v1/messages")
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == (
        "sk-ant",
        "2023-06-01",
    )
    assert "authorization" not in request.headers


async def test_interrupted_stream_raises_engine_error() -> None:
    with pytest.raises(EngineError, match="connection to the upstream was lost"):
        await answer(lambda _: stream(START, *TEXT[:2], ConnectionError()))
    with pytest.raises(EngineError, match="cut off"):
        await answer(lambda _: stream(START, *TEXT, finish()))


def failure(status: int, kind: str, message: str = "No.", **headers: str) -> httpx2.Response:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return httpx2.Response(status, json=body, headers=headers)


async def test_overloaded_server_is_retried_on_another_replica() -> None:
    paths: list[str] = []

    def once(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.path)
        return (
            failure(529, "overloaded_error")
            if len(paths) == 1
            else stream(START, *TEXT, finish(), STOP)
        )

    assert TextDelta(0, "Hello") in await answer(once)
    assert len(set(paths)) == 2
    with pytest.raises(Overloaded):
        await answer(lambda _: failure(529, "overloaded_error"))
    with pytest.raises(RateLimited) as found:
        await answer(lambda _: failure(429, "rate_limit_error", **{"retry-after": "7"}))
    assert found.value.retry_after == 7


async def test_request_errors_reach_client_and_key_errors_are_hidden() -> None:
    with pytest.raises(ContextTooLong) as too_long:
        await answer(
            lambda _: failure(
                400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"
            )
        )
    assert (too_long.value.prompt, too_long.value.limit) == (208310, 200000)
    with pytest.raises(EngineError) as denied:
        await answer(lambda _: failure(401, "authentication_error", "invalid x-api-key"))
    assert "x-api-key" not in denied.value.message


# Discovery.

MODEL = {
    "type": "model",
    "id": "claude-x",
    "display_name": "X",
    "created_at": "2026-01-01T00:00:00Z",
}


def find(handle: Handle, model: str | None = None) -> Any:
    def respond(request: httpx2.Request) -> httpx2.Response:
        response = handle(request)
        assert response is not None
        return response

    transport = FakeTransport(respond)
    return discover(Upstream("http://vendor/v1", key="sk-ant"), model, transport=transport)


def test_find_detects_anthropic_models_and_limits() -> None:
    listed = {
        "data": [{**MODEL, "max_input_tokens": 200_000, "max_tokens": 64_000}],
        "has_more": False,
    }
    found = find(lambda _: httpx2.Response(200, json=listed))
    assert (found.model, found.kind, found.max_model_len, found.max_tokens) == (
        "claude-x",
        KIND,
        200_000,
        64_000,
    )


def test_find_retries_with_anthropic_headers() -> None:
    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.headers.get("x-api-key") == "sk-ant" and "authorization" not in request.headers:
            return httpx2.Response(200, json={"data": [MODEL]})
        return failure(401, "authentication_error", "x-api-key header is required")

    assert find(handle).kind is KIND


@pytest.mark.parametrize(
    "fields", [{"object": "model"}, {"owned_by": "openai"}, {"owned_by": "dragoman"}]
)
def test_find_prefers_openai_api_if_both_are_supported(fields: dict[str, str]) -> None:
    assert (
        find(lambda _: httpx2.Response(200, json={"data": [{**MODEL, **fields}]})).kind is not KIND
    )
