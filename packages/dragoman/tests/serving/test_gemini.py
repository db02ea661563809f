"""Gemini's routes with the embedded model and a script."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from dragoman.core.errors import RequestError
from dragoman.core.message import (
    Image,
    InlineMedia,
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.core.request import AnyJsonObject, Conversation, JsonSchema, StringChoices
from dragoman.dialects.gemini import Framing, read_generate_content
from dragoman.dialects.interfaces import GenerationCall, ReaderOptions
from dragoman.serving.serving_options import ServingOptions
from dragoman_check.rules import gemini as grammar

from .harness import build_server
from .test_vllm import serving

ASK: dict[str, Any] = {"contents": [{"parts": [{"text": "What is the capital of Japan?"}]}]}
GREEDY = {**ASK, "generationConfig": {"temperature": 0}}
FUNCTION = {
    "name": "get_weather",
    "parameters": {
        "type": "OBJECT",
        "properties": {
            "city": {"type": "STRING", "nullable": True},
            "days": {"type": "ARRAY", "items": {"type": "INTEGER"}, "maxItems": "3"},
        },
        "propertyOrdering": ["city"],
    },
}
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@pytest_asyncio.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving() as client:
        yield client


def read(**body: Any) -> GenerationCall:
    data = json.dumps({**ASK, **body}).encode()
    return read_generate_content(data, ReaderOptions(), model="m", framing=None)


def read_prompt(**body: Any) -> Conversation:
    prompt = read(**body).requests[0].prompt
    assert isinstance(prompt, Conversation)
    return prompt


async def answer(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the full response, after checking that both streams of the same request
    equal it.
    """
    whole = await http.post(f"{path}:generateContent", json=body)
    assert whole.status_code == 200, whole.text
    grammar.check_object(whole.json())
    folded = grammar.fold_chunks([whole.json()])
    events = await http.post(f"{path}:streamGenerateContent?alt=sse", json=body)
    assert events.headers["content-type"] == "text/event-stream"
    array = await http.post(f"{path}:streamGenerateContent", json=body)
    assert array.headers["content-type"] == "application/json"
    for chunks in (grammar.check_stream(events.content), grammar.check_array(array.content)):
        assert drop_varying(grammar.fold_chunks(chunks)) == drop_varying(folded)
    return whole.json()


def drop_varying(answer: dict[str, Any]) -> dict[str, Any]:
    """Drop the id, and the count of cached tokens, which later requests have."""
    usage = {**answer["usageMetadata"], "cachedContentTokenCount": 0}
    return {**answer, "responseId": "", "usageMetadata": usage}


@pytest.mark.parametrize("version", ["v1beta", "v1"])
async def test_gemini_full_response_equals_streams(http: httpx2.AsyncClient, version: str):
    full = await answer(http, f"/{version}/models/tiny", GREEDY)
    candidate = full["candidates"][0]
    assert candidate["content"]["parts"] == [{"text": "The capital of Japan is Tokyo."}]
    assert (candidate["finishReason"], full["modelVersion"]) == ("STOP", "tiny")
    assert full["usageMetadata"]["promptTokenCount"] == 17


async def test_gemini_candidates_and_logprobs_equal_streams(http: httpx2.AsyncClient):
    config = {"temperature": 0, "candidateCount": 2, "responseLogprobs": True, "logprobs": 2}
    config["maxOutputTokens"] = 4
    full = await answer(http, "/v1beta/models/tiny", {**ASK, "generationConfig": config})
    assert [one["finishReason"] for one in full["candidates"]] == ["MAX_TOKENS"] * 2
    for candidate in full["candidates"]:
        tops = candidate["logprobsResult"]["topCandidates"]
        assert [len(top["candidates"]) for top in tops] == [2] * 4
        assert candidate["avgLogprobs"] <= 0


async def test_gemini_schema_constrains_answer(http: httpx2.AsyncClient):
    config = {
        "temperature": 0,
        "responseMimeType": "application/json",
        "responseSchema": {
            "type": "OBJECT",
            "properties": {"a": {"type": "INTEGER"}},
            "required": ["a"],
        },
    }
    full = await answer(http, "/v1beta/models/tiny", {**ASK, "generationConfig": config})
    text = full["candidates"][0]["content"]["parts"][0]["text"]
    assert isinstance(json.loads(text)["a"], int)


async def test_gemini_snake_case_equals_camel_case(http: httpx2.AsyncClient):
    body = {**ASK, "generation_config": {"temperature": 0, "max_output_tokens": 2}}
    response = await http.post("/v1beta/models/tiny:generateContent", json=body)
    assert "x-dragoman-warnings" not in response.headers
    assert response.json()["usageMetadata"]["candidatesTokenCount"] == 2


async def test_gemini_count_equals_prompt_tokens(http: httpx2.AsyncClient):
    for body in (ASK, {"generateContentRequest": {"model": "models/tiny", **ASK}}):
        response = await http.post("/v1beta/models/tiny:countTokens", json=body)
        assert response.json() == {"totalTokens": 17}


async def test_gemini_embeddings_batch_equals_single(http: httpx2.AsyncClient):
    content = {"content": {"parts": [{"text": "hello"}]}}
    one = await http.post("/v1beta/models/tiny:embedContent", json=content)
    batch = await http.post(
        "/v1beta/models/tiny:batchEmbedContents",
        json={"requests": [{"model": "models/tiny", **content}, content]},
    )
    assert batch.json()["embeddings"] == [one.json()["embedding"]] * 2


async def test_gemini_models_are_listed_in_pages(http: httpx2.AsyncClient):
    listed = (await http.get("/v1beta/models?pageSize=1&key=any")).json()
    assert [model["name"] for model in listed["models"]] == ["models/tiny"]
    assert "nextPageToken" not in listed
    retrieved = await http.get("/v1beta/models/tiny")
    assert retrieved.json() == listed["models"][0]


@pytest.mark.parametrize("name", ["x-goog-api-key", "x-goog-api-client"])
async def test_models_of_version_1_suit_google_sdk(http: httpx2.AsyncClient, name: str):
    headers = {name: "any"}
    listed = (await http.get("/v1/models", headers=headers)).json()
    assert listed == (await http.get("/v1beta/models")).json()
    for model in ("tiny", "models/tiny"):
        retrieved = await http.get(f"/v1/models/{model}", headers=headers)
        assert retrieved.json() == listed["models"][0]
    missing = await http.get("/v1/models/other", headers=headers)
    assert missing.json()["error"]["status"] == "NOT_FOUND"
    assert (await http.get("/v1/models")).json()["object"] == "list"
    assert "generateContent" in retrieved.json()["supportedGenerationMethods"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "name"),
    [
        ("GET", "/v1beta/models/other", None, 404, "NOT_FOUND"),
        ("GET", "/v1beta/models?pageToken=x", None, 400, "INVALID_ARGUMENT"),
        ("GET", "/v1beta/other", None, 404, "NOT_FOUND"),
        ("GET", "/v1beta/models/tiny:generateContent", None, 405, "UNIMPLEMENTED"),
        ("POST", "/v1beta/models/other:generateContent", ASK, 404, "NOT_FOUND"),
        ("POST", "/v1/models/tiny:countTokens", {}, 400, "INVALID_ARGUMENT"),
    ],
)
async def test_gemini_errors_have_googles_envelope(
    http: httpx2.AsyncClient, method: str, path: str, body: object, status: int, name: str
):
    # A GET of a path that only has POST is the model's, which has the name.
    if method == "GET" and ":" in path:
        path = path.replace("/v1beta/models", "/v1/models")
    response = await http.request(method, path, json=body)
    grammar.check_error(response.json())
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["status"]) == (status, status, name)


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent", "countTokens"])
async def test_gemini_field_mask_is_warned(http: httpx2.AsyncClient, method: str):
    response = await http.post(
        f"/v1beta/models/tiny:{method}?fields=candidates",
        json=ASK,
        headers={"X-Goog-FieldMask": "candidates.content"},
    )
    warnings = response.headers["x-dragoman-warnings"]
    assert "'fields' is ignored" in warnings
    assert "'x-goog-fieldmask' is ignored: answers have all fields" in warnings


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({"x-goog-api-key": "user"}, "", 200),
        ({}, "?key=user", 200),
        ({"authorization": "Bearer user"}, "", 200),
        ({}, "", 401),
        ({}, "?key=wrong", 401),
        ({"x-goog-api-key": "wrong"}, "", 401),
        ({"x-goog-api-key": "user"}, "?key=other", 401),
    ],
)
async def test_gemini_key_in_header_or_query(headers: dict[str, str], query: str, status: int):
    server = build_server(options=ServingOptions(api_key=("user", "other")))
    async with server.http() as client:
        response = await client.get(f"/v1beta/models{query}", headers=headers)
        assert response.status_code == status
        if status == 401:
            grammar.check_error(response.json())
            assert response.json()["error"]["status"] == "UNAUTHENTICATED"
        # Other dialects have no key in their URLs.
        elsewhere = await client.get("/v1/models?key=user")
        assert elsewhere.status_code == 401


def test_reader_conversation_with_calls_and_images():
    contents = [
        {
            "role": "user",
            "parts": [{"text": "a"}, {"inlineData": {"data": PIXEL, "mimeType": "image/png"}}],
        },
        {"role": "model", "parts": [{"text": "th", "thought": True}]},
        {"role": "model", "parts": [{"text": "ought", "thought": True}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"snake_case": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"b_c": 2}}}]},
    ]
    messages = read_prompt(contents=contents, systemInstruction={"parts": [{"text": "s"}]}).messages
    assert messages[0] == Message(Role.SYSTEM, (Text("s"),))
    assert isinstance(messages[1].parts[1], Image)
    assert messages[2] == Message(
        Role.ASSISTANT, (Reasoning("thought"), ToolCall("call_0", "f", '{"snake_case": 1}'))
    )
    result = ToolResult("call_0", (Text('{"b_c": 2}'),), answers_call=False)
    assert messages[3] == Message(Role.TOOL, (result,), "f")


def test_reader_image_in_urlsafe_base64():
    data = base64.b64decode(PIXEL)
    url_safe = base64.urlsafe_b64encode(data).decode().rstrip("=")
    part = {"inline_data": {"data": url_safe, "mime_type": "image/png"}}
    (image,) = read_prompt(contents=[{"parts": [part]}]).messages[0].parts
    assert isinstance(image, Image)
    assert image.source == InlineMedia(data, "image/png")


def test_reader_declarations_as_json_schema():
    (tool,) = read_prompt(tools=[{"functionDeclarations": [FUNCTION]}]).tools
    assert json.loads(getattr(tool, "parameters", "")) == {
        "type": "object",
        "properties": {
            "city": {"type": ["string", "null"]},
            "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        },
    }


def test_reader_schema_types_as_numbers():
    properties = {
        "city": {"type": 1, "nullable": True},
        "days": {"type": 5, "items": {"type": 3}},
        "any": {"type": 0},
    }
    function = {"name": "f", "parameters": {"type": 6, "properties": properties}}
    (tool,) = read_prompt(tools=[{"functionDeclarations": [function]}]).tools
    assert json.loads(getattr(tool, "parameters", "")) == {
        "type": "object",
        "properties": {
            "city": {"type": ["string", "null"]},
            "days": {"type": "array", "items": {"type": "integer"}},
            "any": {},
        },
    }


@pytest.mark.parametrize(
    ("calling", "mode", "names", "strict"),
    [
        ({}, "auto", None, None),
        ({"mode": "AUTO"}, "auto", None, None),
        ({"mode": "any"}, "required", None, None),
        (
            {"mode": "ANY", "allowedFunctionNames": ["get_weather"]},
            "required",
            ("get_weather",),
            None,
        ),
        ({"mode": "NONE"}, "none", None, None),
        ({"mode": "VALIDATED"}, "auto", None, True),
        ({"mode": 0}, "auto", None, None),
        ({"mode": 2}, "required", None, None),
        ({"mode": 4}, "auto", None, True),
    ],
)
def test_reader_function_calling_modes(
    calling: dict[str, Any], mode: str, names: tuple[str, ...] | None, strict: bool | None
):
    prompt = read_prompt(
        tools=[{"functionDeclarations": [FUNCTION]}],
        toolConfig={"functionCallingConfig": calling},
    )
    assert (prompt.tool_choice.mode, prompt.tool_choice.names) == (mode, names)
    assert [getattr(tool, "strict", None) for tool in prompt.tools] == [strict]


@pytest.mark.parametrize(
    ("config", "enabled", "effort", "budget"),
    [
        ({}, None, None, None),
        ({"includeThoughts": True}, None, None, None),
        ({"thinkingBudget": 0}, False, None, None),
        ({"thinkingBudget": -1}, True, None, None),
        ({"thinkingBudget": -1, "includeThoughts": True}, True, None, None),
        ({"thinkingBudget": 64}, True, None, 64),
        ({"thinkingLevel": "HIGH"}, True, "high", None),
    ],
)
def test_reader_thinking_config(
    config: dict[str, Any], enabled: bool | None, effort: str | None, budget: int | None
):
    options = read_prompt(generationConfig={"thinkingConfig": config}).reasoning
    assert (options.enabled, options.effort, options.budget) == (enabled, effort, budget)
    assert options.wants_text is config.get("includeThoughts", False)


def test_reader_response_formats():
    def constrain(**config: Any) -> object:
        return read(generationConfig=config).requests[0].constraint

    enum = {"type": "STRING", "enum": ["a", "b"]}
    assert constrain(responseMimeType="text/plain") is None
    assert constrain(responseMimeType="application/json") == AnyJsonObject(or_array=True)
    assert constrain(responseMimeType="text/x.enum", responseSchema=enum) == StringChoices(
        ("a", "b")
    )
    schema = {"type": "string", "enum": ["a", "b"]}
    for field in ({"responseSchema": enum}, {"responseJsonSchema": schema}):
        found = constrain(responseMimeType="application/json", **field)
        assert isinstance(found, JsonSchema)
        assert json.loads(found.schema) == schema


PART = "contents[0].parts[0]"
CONFIG = "generationConfig"


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"fileData": {"fileUri": "files/a"}}, "fileData.fileUri"),
        ({"inlineData": {"data": "?", "mimeType": "image/png"}}, "inlineData.data"),
        ({"inlineData": {"data": "YQ", "mimeType": "video/mp4"}}, "inlineData"),
        ({"functionCall": {"name": "f"}}, "functionCall"),
    ],
)
def test_reader_invalid_part_is_named(part: dict[str, Any], field: str):
    with pytest.raises(RequestError) as caught:
        read(contents=[{"parts": [part]}])
    assert caught.value.param == f"{PART}.{field}"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"responseModalities": ["AUDIO"]}, "responseModalities"),
        ({"responseSchema": {"type": "STRING"}}, "responseSchema"),
        ({"responseMimeType": "text/html"}, "responseMimeType"),
        ({"logprobs": 2}, "logprobs"),
        ({"temperature": "x"}, "temperature"),
        (
            {"thinkingConfig": {"thinkingBudget": 1, "thinkingLevel": "LOW"}},
            "thinkingConfig.thinkingLevel",
        ),
    ],
)
def test_reader_invalid_config_is_named(config: dict[str, Any], field: str):
    with pytest.raises(RequestError) as caught:
        read(generationConfig=config)
    assert caught.value.param == f"{CONFIG}.{field}"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "x", "parts": [{"text": "a"}]}]}, "contents[0].role"),
        ({"cached_content": "cachedContents/a"}, "cachedContent"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": 9}}},
            "toolConfig.functionCallingConfig.mode",
        ),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "toolConfig.functionCallingConfig.mode",
        ),
        (
            {"tools": [{"functionDeclarations": [{"name": "a b"}]}]},
            "tools[0].functionDeclarations[0].name",
        ),
    ],
)
def test_reader_invalid_field_is_named(body: dict[str, Any], param: str):
    with pytest.raises(RequestError) as caught:
        read(**body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        ({"safetySettings": [{"category": "x"}]}, "safetySettings"),
        ({"tools": [{"google_search": {"a": 1}}]}, "tools[0].googleSearch"),
        (
            {"tools": [{"functionDeclarations": [{**FUNCTION, "response": {"type": "STRING"}}]}]},
            "tools[0].functionDeclarations[0].response",
        ),
        (
            {"tools": [{"functionDeclarations": [{**FUNCTION, "response_json_schema": {}}]}]},
            "tools[0].functionDeclarations[0].responseJsonSchema",
        ),
        (
            {"tools": [{"functionDeclarations": [{**FUNCTION, "behavior": "NON_BLOCKING"}]}]},
            "tools[0].functionDeclarations[0].behavior",
        ),
        ({"labels": {"a": "b"}}, "labels"),
        ({"generationConfig": {"mediaResolution": "HIGH"}}, "generationConfig.mediaResolution"),
    ],
)
def test_reader_field_without_effect_is_warned(body: dict[str, Any], warning: str):
    (found,) = read(**body).warnings
    assert found.startswith(f"{warning}: ")


def test_reader_unknown_fields_are_reported():
    call = read(
        other=1, generationConfig={"more": 1}, contents=[{"parts": [{"text": "a", "x": 1}]}]
    )
    assert set(call.unknown) == {"other", "generationConfig.more", "contents[0].parts[0].x"}


def test_reader_numbers_as_strings():
    config = {
        "maxOutputTokens": "12",
        "topK": 3.0,
        "temperature": "0.5",
        "seed": "-4",
        "thinkingConfig": {"thinkingBudget": "7"},
    }
    numbers = {
        "maxOutputTokens": 12,
        "topK": 3,
        "temperature": 0.5,
        "seed": -4,
        "thinkingConfig": {"thinkingBudget": 7},
    }
    assert read(generationConfig=config).requests == read(generationConfig=numbers).requests


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "x", ""])
def test_reader_string_without_probability_rejected(value: str):
    with pytest.raises(RequestError) as caught:
        read(generationConfig={"topP": value})
    assert caught.value.param == f"{CONFIG}.topP"


@pytest.mark.parametrize(
    ("body", "field", "name", "place"),
    [
        ({"other": 1}, None, "other", ""),
        (
            {"generationConfig": {"topQ": 1}},
            "generation_config",
            "top_q",
            " at 'generation_config'",
        ),
        (
            {"contents": [{"parts": [{"text": "a", "x": 1}]}]},
            "contents[0].parts[0]",
            "x",
            " at 'contents[0].parts[0]'",
        ),
    ],
)
async def test_strict_server_rejects_unknown_name_as_google(
    body: dict[str, Any], field: str | None, name: str, place: str
):
    async with build_server(options=ServingOptions(strict=True)).http() as http:
        rejected = await http.post("/v1beta/models/m:generateContent", json={**ASK, **body})
    message = f'Invalid JSON payload received. Unknown name "{name}"{place}: Cannot find field.'
    error = rejected.json()["error"]
    assert (rejected.status_code, error["message"], error["status"]) == (
        400,
        message,
        "INVALID_ARGUMENT",
    )
    (violation,) = error["details"][0]["fieldViolations"]
    assert (violation.get("field"), violation["description"]) == (field, message)


def test_stream_framings_of_reader():
    for framing in (None, *Framing):
        data = json.dumps(ASK).encode()
        call = read_generate_content(data, ReaderOptions(), model="m", framing=framing)
        assert call.stream is (framing is not None)
