"""Upstreams with Google's Gemini API: requests are encoded, chunks are parsed, errors
are translated, models are discovered.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.engines.upstream.odd_gemini_streams import STOP, call, chunk, text
from tests.engines.upstream.odd_stream import sse
from tests.engines.upstream.relays import build_engine
from tests.engines.upstream.stub_server import Handle, Pieces, far_server
from tests.http_transport import FakeTransport

from dragoman.core.encoder_requests import EncodingTask, TextEmbedRequest, TextInputs
from dragoman.core.errors import (
    ContextTooLong,
    DragomanError,
    EngineError,
    Overloaded,
    RateLimited,
    RequestError,
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
    Audio,
    FunctionTool,
    Image,
    InlineMedia,
    Message,
    Part,
    Reasoning,
    RemoteMedia,
    Role,
    SealKind,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from dragoman.core.request import (
    AnyJsonObject,
    Constraint,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    SamplingOptions,
    StringChoices,
)
from dragoman.engines.upstream import KINDS, ModelTasks, Upstream, UpstreamDefaults, discover
from dragoman.engines.upstream.gemini_events import GeminiEventReader
from dragoman.engines.upstream.gemini_request import encode_gemini_request
from dragoman.engines.upstream.server_kinds import find_kind_by_url
from dragoman.engines.upstream.upstream_request import UpstreamRequest
from tests.pictures import PIXEL

KIND = KINDS["gemini"]
HI = [{"role": "user", "parts": [{"text": "hi"}]}]
SIGNED = Reasoning("hm", seal=SealKind.GEMINI + "c2ln")
CALL = ToolCall("c1", "add", '{"a": 1.0}')


def ask(*parts: Part, **fields: Any) -> GenerateRequest:
    conversation = {
        name: fields.pop(name) for name in tuple(fields) if name in Conversation.__struct_fields__
    }
    messages = conversation.pop("messages", (Message(Role.USER, parts or (Text("hi"),)),))
    return GenerateRequest("m", Conversation(messages, **conversation), **fields)


def encode_whole(request: GenerateRequest, model: str = "there") -> UpstreamRequest:
    return encode_gemini_request(request, KIND, model, UpstreamDefaults())


def encode(request: GenerateRequest, model: str = "there") -> dict[str, Any]:
    return json.loads(encode_whole(request, model).body)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-3-pro", "/models/gemini-3-pro"),
        ("models/a b", "/models/a%20b"),
        ("tunedModels/mine", "/tunedModels/mine"),
        ("org/model?x", "/models/org/model%3Fx"),
    ],
)
def test_encode_puts_model_into_path(model: str, path: str) -> None:
    encoded = encode_whole(ask(), model)
    assert encoded.path == f"{path}:streamGenerateContent?alt=sse"
    assert encoded.warnings == ()


def test_encode_maps_limits_and_sampling() -> None:
    sampling = SamplingOptions(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        seed=2**40 + 3,
        presence_penalty=1.0,
        frequency_penalty=0.5,
    )
    body = encode(ask(sampling=sampling, limits=GenerationLimits(max_tokens=9, stop=("END",))))
    assert body == {
        "contents": HI,
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "topK": 5,
            "seed": 3,
            "presencePenalty": 1.0,
            "frequencyPenalty": 0.5,
            "maxOutputTokens": 9,
            "stopSequences": ["END"],
        },
    }
    assert encode(ask(sampling=SamplingOptions(top_k=0))) == {"contents": HI}


def test_encode_merges_turns_and_system_messages() -> None:
    messages = (
        Message(Role.SYSTEM, (Text("Be kind."),)),
        Message(Role.DEVELOPER, (Text("Be brief."),)),
        Message(Role.USER, (Text("a"),)),
        Message(Role.USER, (Text("b"),)),
        Message(Role.ASSISTANT, (Text("c"),)),
        Message(Role.SYSTEM, (Text("Be quick."),)),
    )
    encoded = encode_whole(ask(messages=messages))
    assert json.loads(encoded.body) == {
        "systemInstruction": {"parts": [{"text": "Be kind."}, {"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
            {"role": "model", "parts": [{"text": "c"}]},
            {"role": "user", "parts": [{"text": "Be quick."}]},
        ],
    }
    (warning,) = encoded.warnings
    assert "later system message" in warning


def test_encode_converts_media_to_parts() -> None:
    body = encode(
        ask(
            Image(InlineMedia(PIXEL)),
            Image(RemoteMedia("https://a/b.webp?x=1")),
            Audio(InlineMedia(b"x"), "mp3"),
        )
    )
    inline, remote, audio = body["contents"][0]["parts"]
    assert inline["inlineData"]["mimeType"] == "image/png"
    assert remote == {"fileData": {"mimeType": "image/webp", "fileUri": "https://a/b.webp?x=1"}}
    assert audio == {"inlineData": {"mimeType": "audio/mp3", "data": "eA=="}}


def test_encode_tool_loop_keeps_signatures_at_their_parts() -> None:
    messages = (
        Message(Role.USER, (Text("hi"),)),
        Message(
            Role.ASSISTANT,
            (
                SIGNED,
                Text("I add."),
                Reasoning("", seal=SealKind.GEMINI + "Y2FsbA=="),
                CALL,
                ToolCall("c2", "add", "{"),
            ),
        ),
        Message(
            Role.TOOL,
            (
                ToolResult("c1", (Text('{"sum": 3}'),)),
                ToolResult("c2", (Text("No."), Image(InlineMedia(PIXEL))), is_error=True),
            ),
        ),
        Message(Role.ASSISTANT, (Text("3"), Reasoning("", seal=SealKind.GEMINI + "ZW5k"))),
        Message(Role.USER, (Text("Thanks"),)),
    )
    _, first, results, second, _ = encode(ask(messages=messages))["contents"]
    assert first["parts"] == [
        {"text": "hm", "thought": True},
        {"text": "I add.", "thoughtSignature": "c2ln"},
        {
            "functionCall": {"id": "c1", "name": "add", "args": {"a": 1.0}},
            "thoughtSignature": "Y2FsbA==",
        },
        {"functionCall": {"id": "c2", "name": "add", "args": {"INVALID_JSON": "{"}}},
    ]
    one, two, image = results["parts"]
    assert one == {"functionResponse": {"id": "c1", "name": "add", "response": {"sum": 3}}}
    assert two == {"functionResponse": {"id": "c2", "name": "add", "response": {"error": "No."}}}
    assert "inlineData" in image
    assert second["parts"] == [{"text": "3"}, {"text": "", "thoughtSignature": "ZW5k"}]


@pytest.mark.parametrize(
    ("model", "is_signed"), [("gemini-3-pro", True), ("gemini-2.5-pro", False)]
)
def test_encode_unsigned_call_has_placeholder_where_needed(model: str, is_signed: bool) -> None:
    answer = (Reasoning("hm", seal="anthropic:c2ln"), CALL, CALL)
    messages = (Message(Role.USER, (Text("hi"),)), Message(Role.ASSISTANT, answer))
    encoded = encode_whole(ask(messages=messages), model)
    parts = json.loads(encoded.body)["contents"][1]["parts"]
    assert ["thoughtSignature" in part for part in parts] == [is_signed, False]
    assert any("reasoning without a signature" in warning for warning in encoded.warnings)


@pytest.mark.parametrize(
    ("options", "model", "thinking"),
    [
        (ReasoningOptions(), "there", None),
        (ReasoningOptions(), "gemini-2.5-pro", {"includeThoughts": True}),
        (ReasoningOptions(), "gemini-2.5-flash-image", None),
        (ReasoningOptions(True), "there", {"includeThoughts": True, "thinkingBudget": -1}),
        (ReasoningOptions(True), "gemini-3-pro", {"includeThoughts": True}),
        (ReasoningOptions(wants_text=True), "there", {"includeThoughts": True}),
        (ReasoningOptions(False), "there", {"thinkingBudget": 0}),
        (ReasoningOptions(effort="none"), "there", {"thinkingBudget": 0}),
        (
            ReasoningOptions(budget=500),
            "there",
            {"includeThoughts": True, "thinkingBudget": 500},
        ),
        (
            ReasoningOptions(effort="low"),
            "gemini-3-pro",
            {"includeThoughts": True, "thinkingLevel": "LOW"},
        ),
        (
            ReasoningOptions(effort="xhigh"),
            "gemini-3-pro",
            {"includeThoughts": True, "thinkingLevel": "HIGH"},
        ),
        (
            ReasoningOptions(effort="medium"),
            "gemini-2.5-pro",
            {"includeThoughts": True, "thinkingBudget": 8_192},
        ),
    ],
)
def test_encode_maps_reasoning_to_thinking_config(
    options: ReasoningOptions, model: str, thinking: dict[str, Any] | None
) -> None:
    encoded = encode_whole(ask(reasoning=options), model)
    config = json.loads(encoded.body).get("generationConfig", {})
    assert config.get("thinkingConfig") == thinking
    assert bool(encoded.warnings) is (options.effort == "xhigh")


ADD = FunctionTool("add", "Adds", '{"type":"object"}')
STRICT = FunctionTool("sub", strict=True)


@pytest.mark.parametrize(
    ("choice", "tools", "config"),
    [
        (ToolChoice(), (ADD,), None),
        (ToolChoice(), (ADD, STRICT), {"mode": "VALIDATED"}),
        (ToolChoice("none"), (ADD,), {"mode": "NONE"}),
        (ToolChoice("required"), (ADD,), {"mode": "ANY"}),
        (
            ToolChoice("required", ("add",), True),
            (ADD, STRICT),
            {"mode": "ANY", "allowedFunctionNames": ["add"]},
        ),
        (
            ToolChoice("auto", ("add",)),
            (ADD, STRICT),
            {"mode": "VALIDATED", "allowedFunctionNames": ["add"]},
        ),
    ],
)
def test_encode_maps_tools_and_choice(
    choice: ToolChoice, tools: tuple[FunctionTool, ...], config: dict[str, Any] | None
) -> None:
    body = encode(ask(tools=tools, tool_choice=choice))
    declared = body["tools"][0]["functionDeclarations"]
    assert declared[0] == {
        "name": "add",
        "description": "Adds",
        "parametersJsonSchema": {"type": "object"},
    }
    assert body.get("toolConfig", {}).get("functionCallingConfig") == config


@pytest.mark.parametrize(
    ("constraint", "config"),
    [
        (
            JsonSchema('{"type":"array"}'),
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "array"}},
        ),
        (
            AnyJsonObject(),
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
        ),
        (AnyJsonObject(or_array=True), {"responseMimeType": "application/json"}),
        (
            StringChoices(("a", "b")),
            {
                "responseMimeType": "text/x.enum",
                "responseSchema": {"type": "STRING", "enum": ["a", "b"]},
            },
        ),
    ],
)
def test_encode_maps_response_format(constraint: Constraint, config: dict[str, Any]) -> None:
    assert encode(ask(constraint=constraint))["generationConfig"] == config


def read(*events: Any) -> list[Event]:
    reader = GeminiEventReader(lambda: "new")
    found = [event for data in events for event in reader.read(json.dumps(data).encode())]
    found += reader.close()
    check_events(found)
    return found


def test_read_stream_returns_events_and_usage() -> None:
    usage = {
        "promptTokenCount": 5,
        "cachedContentTokenCount": 4,
        "thoughtsTokenCount": 3,
        "candidatesTokenCount": 2,
        "totalTokenCount": 10,
    }
    assert read(
        chunk(text("hm", thought=True), usageMetadata={"promptTokenCount": 5}),
        chunk(text("a", thoughtSignature="c2ln")),
        chunk(call({"a": 1}), reason="STOP", usageMetadata=usage),
    ) == [
        Started(5),
        ReasoningDelta(0, "hm"),
        ReasoningDelta(0, "", (), "gemini:c2ln"),
        TextDelta(0, "a"),
        ToolCallStart(0, "new", "add"),
        ToolCallDelta(0, '{"a":1}'),
        ChoiceFinished(0, FinishReason.STOP),
        Finished(Usage(5, 5, 4, 3)),
    ]


def test_read_signature_at_end_of_text_follows_it() -> None:
    events = read(chunk(text("a")), chunk(text("b", thoughtSignature="c2ln")), STOP)
    assert events[1:-2] == [
        TextDelta(0, "a"),
        TextDelta(0, "b"),
        ReasoningDelta(0, "", (), "gemini:c2ln"),
    ]


async def answer(handle: Handle, **config: Any) -> list[Event]:
    def with_health(request: httpx2.Request) -> httpx2.Response | None:
        return (
            httpx2.Response(200, json={"models": []})
            if request.method == "GET"
            else handle(request)
        )

    async with far_server(with_health) as address:
        upstreams = tuple(Upstream(f"{address}/{name}/v1beta", key="AIza") for name in "ab")
        subject = build_engine(kind="gemini", upstreams=upstreams, **config)
        await subject.start()
        try:
            return [event async for event in subject.generate(ask())]
        finally:
            await subject.stop()


def stream(*events: Any) -> httpx2.Response:
    pieces = [event if isinstance(event, Exception) else sse(event) for event in events]
    headers = {"content-type": "text/event-stream"}
    return httpx2.Response(200, headers=headers, stream=Pieces(*pieces))


async def test_api_key_is_sent_in_x_goog_api_key_header() -> None:
    seen: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return stream(chunk(text("Hello")), STOP)

    assert TextDelta(0, "Hello") in await answer(handle)
    (request,) = seen
    assert request.url.path.endswith("/v1beta/models/m:streamGenerateContent")
    assert request.url.query == b"alt=sse"
    assert request.headers["x-goog-api-key"] == "AIza"
    assert "authorization" not in request.headers


async def test_interrupted_stream_raises_engine_error() -> None:
    with pytest.raises(EngineError, match="connection to the upstream was lost"):
        await answer(lambda _: stream(chunk(text("a")), ConnectionError()))
    with pytest.raises(EngineError, match="cut off"):
        await answer(lambda _: stream(chunk(text("a"))))


def failure(
    status: int, word: str, message: str = "No.", *details: Any, is_list: bool = False
) -> httpx2.Response:
    error = {"code": status, "message": message, "status": word, "details": details}
    return httpx2.Response(status, json=[{"error": error}] if is_list else {"error": error})


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "41.5s"}
KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}


def violate(field: str) -> dict[str, Any]:
    violation = {"field": field, "description": "No."}
    return {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [violation],
    }


@pytest.mark.parametrize("is_list", [False, True])
async def test_error_before_stream_is_translated(is_list: bool) -> None:
    async def fail(status: int, word: str, *details: Any, message: str = "No.") -> DragomanError:
        with pytest.raises(DragomanError) as found:
            await answer(lambda _: failure(status, word, message, *details, is_list=is_list))
        return found.value

    limited = await fail(429, "RESOURCE_EXHAUSTED", RETRY)
    assert (type(limited), limited.retry_after) == (RateLimited, 41.5)
    assert type(await fail(503, "UNAVAILABLE")) is Overloaded
    denied = await fail(400, "INVALID_ARGUMENT", KEY, message="API key not valid.")
    assert type(denied) is EngineError
    assert "API key" not in denied.message
    too_long = await fail(
        400,
        "INVALID_ARGUMENT",
        message="The input token count (1200) exceeds the maximum number of tokens allowed (1000).",
    )
    assert isinstance(too_long, ContextTooLong)
    assert (too_long.prompt, too_long.limit) == (1200, 1000)


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("generation_config.max_output_tokens", "max_tokens"),
        ("generationConfig.maxOutputTokens", "max_tokens"),
        ("generation_config.top_k", "top_k"),
        ("generation_config.temperature", "temperature"),
        ("generation_config.thinking_config.thinking_budget", "thinking_token_budget"),
        ("generationConfig.responseJsonSchema", "response_format"),
        ("contents[2].parts[0]", "messages.parts[0]"),
        ("tool_config.function_calling_config.mode", "tool_choice.function_calling_config.mode"),
    ],
)
async def test_error_names_core_field(field: str, param: str) -> None:
    with pytest.raises(RequestError) as found:
        await answer(lambda _: failure(400, "INVALID_ARGUMENT", "No.", violate(field)))
    assert found.value.param == param


MODEL = {
    "name": "models/gemini-x",
    "inputTokenLimit": 1_000_000,
    "outputTokenLimit": 64_000,
    "supportedGenerationMethods": ["generateContent", "countTokens"],
}
EMBEDDER = {"name": "models/embed-x", "supportedGenerationMethods": ["embedContent"]}


@pytest.mark.parametrize("name", [None, "gemini-x", "models/gemini-x"])
def test_discover_reads_google_list_of_models(name: str | None) -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["x-goog-api-key"] == "AIza"
        return httpx2.Response(200, json={"models": [MODEL, EMBEDDER]})

    upstream = Upstream("http://vendor/v1beta", key="AIza")
    found = discover(upstream, name, transport=FakeTransport(respond))
    assert (found.model, found.kind) == (name or "gemini-x", KIND)
    assert (found.max_model_len, found.max_tokens) == (1_000_000, 64_000)
    assert found.tasks == ModelTasks()
    embedder = discover(upstream, "embed-x", transport=FakeTransport(respond))
    assert embedder.tasks == ModelTasks(False, frozenset({EncodingTask.EMBEDDINGS}))
    with pytest.raises(EngineError, match="has no model 'other'"):
        discover(upstream, "other", transport=FakeTransport(respond))


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://generativelanguage.googleapis.com/v1beta", "gemini"),
        ("https://generativelanguage.googleapis.com", "gemini"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", None),
        ("http://a:8000/v1beta/", "gemini"),
        ("http://a:8000/v1", None),
    ],
)
def test_find_kind_by_url_knows_gemini_urls(url: str, kind: str | None) -> None:
    found = find_kind_by_url(url)
    assert (found and found.name) == kind


async def embed(request: TextEmbedRequest, body: dict[str, Any]) -> tuple[Any, Any]:
    seen: list[Any] = []

    def handle(sent: httpx2.Request) -> httpx2.Response:
        if sent.method == "POST":
            seen.append((sent.url.path, json.loads(sent.content)))
        return httpx2.Response(200, json=body)

    async with far_server(handle) as address:
        tasks = frozenset({EncodingTask.EMBEDDINGS})
        engine = build_engine(address, kind="gemini", encoding_tasks=tasks)
        await engine.start()
        try:
            return await engine.embed_texts(request), seen[0]
        finally:
            await engine.stop()


async def test_embeddings_come_from_batch_embed_contents() -> None:
    request = TextEmbedRequest("m", TextInputs(("a", "b")), dimensions=2)
    vectors = {"embeddings": [{"values": [1.0, 2.0]}, {"values": [3.0, 4.0]}]}
    found, (path, sent) = await embed(request, vectors)
    assert path == "/v1beta/models/m:batchEmbedContents"
    assert sent["requests"][1] == {
        "model": "models/m",
        "content": {"parts": [{"text": "b"}]},
        "outputDimensionality": 2,
    }
    assert (found.dimensions, len(found.vectors)) == (2, 2)
    with pytest.raises(Unsupported):
        await embed(TextEmbedRequest("m", TextInputs(((1, 2),))), vectors)
