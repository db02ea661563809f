"""The OpenAPI document matches the server: exactly its routes, parameters, responses
and events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import jsonschema_rs
import msgspec
import pytest
from tests.fuzz.exchange import Request, send_request
from tests.fuzz.requests import State, draw_request, examples
from tests.fuzz.test_fuzz import HOLDING, server, undo
from tests.golden.renderings import GOLDEN, Golden
from tests.serving.described import (
    REF,
    PropertyCounter,
    check_response,
    document,
    find_errors,
    find_operation,
    find_value_schema,
    read_values,
    resolve,
    routes,
)
from tests.serving.harness import build_server
from tests.serving.test_tenancy import serving, tenant

from dragoman.core.errors import RequestError
from dragoman.dialects.interfaces import ReaderOptions
from dragoman.dialects.json_body import JsonBody
from dragoman.dialects.registry import list_parameters
from dragoman.serving.route import Operation
from dragoman.serving.routes.openapi.document import to_path_template
from dragoman.serving.serving_options import ServingOptions

RUNS = 3
EACH = 300
GOLDEN_ROUTES = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama-chat": "/api/chat",
    "ollama-generate": "/api/generate",
    "gemini": "/v1beta/models/{model}:streamGenerateContent",
}
BODIES = {
    body.name: body
    for route in routes()
    for operation in route.operations.values()
    for body in operation.bodies
    if isinstance(body, JsonBody)
}


def find_bodies(table: str) -> list[JsonBody]:
    """Return the bodies, or nested objects of bodies, whose parameters are in a table."""
    nested = [inner for body in BODIES.values() for inner in (body.nested or {}).values()]
    return [
        body
        for body in (*BODIES.values(), *nested)
        if body.table is not None and body.table.rows[0].dialect == table
    ]


def schema_of(name: str) -> dict[str, Any]:
    return document()["components"]["schemas"][name]


def test_openapi_describes_exactly_registered_routes() -> None:
    registered = {
        (method, to_path_template(route.path)) for route in routes() for method in route.operations
    }
    described = {
        (method.upper(), path) for path, item in document()["paths"].items() for method in item
    }
    assert {each for each in described if not each[0].startswith("X-")} == registered


def test_operation_without_description_raises_error() -> None:
    """A handler cannot become part of a route without the text of the document."""
    operation = next(iter(routes()[0].operations.values()))
    declared: Any = Operation
    with pytest.raises(TypeError, match="required argument 'tag'"):
        declared(operation.handler)
    for route in routes():
        for declared in route.operations.values():
            assert declared.tag
            assert declared.summary, route.path


def test_openapi_document_is_valid() -> None:
    """Every reference has a target, every schema is valid, and every operation id is
    unique.
    """
    text = json.dumps(document())
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', text)):
        assert resolve({"$ref": reference}), reference
    for name, schema in document()["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert re.fullmatch(r"[A-Za-z]\w+", name), name
    names = [
        operation["operationId"]
        for item in document()["paths"].values()
        for operation in item.values()
        if "operationId" in operation
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("dialect", sorted({row.dialect for row in list_parameters()}))
def test_openapi_properties_equal_listed_parameters(dialect: str) -> None:
    rows = {row.name for row in list_parameters() if row.dialect == dialect}
    assert rows == {
        name for body in find_bodies(dialect) for name in schema_of(body.name)["properties"]
    }


@pytest.mark.parametrize("name", sorted(examples.DIALECTS))
def test_openapi_accepts_parameter_examples(name: str) -> None:
    known = examples.DIALECTS[name]
    body, *_ = find_bodies(name)
    for parameter in known.examples:
        sent = examples.body(name, parameter)
        assert find_errors({"$ref": REF + body.name}, sent) == [], parameter


WRONG: tuple[Any, ...] = ("x", 1.5, -7, 10**12, True, [], {}, [1.5], [{"x": 1}], {"x": [1]})


@pytest.mark.parametrize("name", sorted(examples.DIALECTS))
def test_openapi_rejected_values_rejected_by_reader(name: str) -> None:
    """The document is not stricter than the reader: each value that it forbids for a
    field is an error.
    """
    known = examples.DIALECTS[name]
    body, *_ = find_bodies(name)
    rejected = 0
    for field in schema_of(body.name)["properties"]:
        for value in WRONG:
            sent = {**known.base, field: value}
            if find_errors({"$ref": REF + body.name}, sent):
                rejected += 1
                with pytest.raises(RequestError):
                    known.read(json.dumps(sent).encode(), ReaderOptions(default_model="m"))
    assert rejected > 100


def golden_values() -> Iterator[tuple[Golden, dict[str, Any], object]]:
    """Yield the values in the golden files, each with its schema."""
    for golden in GOLDEN:
        # No request makes /api/chat return a context.
        if golden.writer == "ollama-chat" and golden.case == "echo":
            continue
        path = max((name for name in GOLDEN_ROUTES if golden.writer.startswith(name)), key=len)
        operation = find_operation("POST", GOLDEN_ROUTES[path])
        assert operation is not None
        content = operation["responses"]["200"]["content"]
        streamed = "application/x-ndjson" if path.startswith("ollama") else "text/event-stream"
        for file, _ in golden.files():
            if golden.writer == "gemini" and file.suffix == ".json":
                # Only Gemini has another path for streams.
                whole = find_operation("POST", "/v1beta/models/{model}:generateContent")
                assert whole is not None
                content = whole["responses"]["200"]["content"]
            media = "application/json" if file.suffix == ".json" else streamed
            for value in read_values(media, file.read_bytes()):
                yield golden, find_value_schema(content, media), value


def test_openapi_describes_golden_responses_and_events() -> None:
    count = 0
    for golden, schema, value in golden_values():
        assert find_errors(schema, value) == [], (
            f"{golden.case}.{golden.writer}: {json.dumps(value)[:500]}"
        )
        count += 1
    assert count > 1000


NOT_IN_GOLDEN = {
    # Only a complete server adds these: request ids, echoed fields, stored objects.
    ("GeminiErrorStatus", "details"),
    *(
        ("AnthropicErrorBody", "request_id"),
        ("AnthropicErrorDetail", "details"),
        ("ChatCompletion", "metadata"),
    ),
    *(("ResponseObject", "conversation"), ("ResponseObject", "user"), ("EchoedText", "verbosity")),
    *(
        ("MessageItem", "phase"),
        ("ReasoningItem", "encrypted_content"),
        ("CustomCallItem", "namespace"),
    ),
    *(("MessageResponse", "context_management"), ("MessageDelta", "context_management")),
    ("MessageResponse", "diagnostics"),
    *((name, "weight_versions") for name in ("ChatChoice", "ChatChunkChoice")),
    *((name, "weight_versions") for name in ("CompletionChoice", "CompletionChunkChoice")),
    *(
        (name, "metrics")
        for name in (
            "ChatCompletion",
            "ChatCompletionChunk",
            "TextCompletion",
            "TextCompletionChunk",
        )
    ),
    *(("TextCompletion", "service_tier"), ("TextCompletionChunk", "service_tier")),
    ("CachedTokenDetails", "cache_write_tokens"),
    # Of a tool that says how it has drawn.
    *(("ImageGenerationCallItem", "quality"), ("ImageGenerationCallItem", "background")),
    # Of upstreams that verify their own reasoning.
    *(("ChatAnswerMessage", "reasoning_details"), ("ChatDelta", "reasoning_details")),
}


def test_openapi_has_no_unused_properties() -> None:
    """Each property of objects that writers build manually occurs in a golden file, or
    is listed as an exception.
    """
    counter = PropertyCounter()
    for _, schema, value in golden_values():
        counter.count(schema, value)
    seen = counter.seen.keys()
    described = {
        (name, field)
        for name in {name for name, _ in seen}
        for field in schema_of(name)["properties"]
    }
    assert described - seen == NOT_IN_GOLDEN


@pytest.mark.parametrize("run", range(RUNS))
async def test_openapi_describes_responses_to_random_requests(run: int, tmp_path: Path) -> None:
    random = Random(run)
    state = State()
    differences: list[str] = []
    async with server(tmp_path) as (app, _):
        for _ in range(EACH):
            request = draw_request(random, state)
            response = await send_request(app, request)
            state.note(request, response)
            if request.route in HOLDING:
                await undo(app)
            # An unsupported method is a 405, and a client that disconnected has a
            # partial response.
            if response.status == 405 or request.leave_after is not None:
                continue
            method = "GET" if request.method == "HEAD" else request.method
            found = check_response(
                method, request.route, response.status, dict(response.headers), response.body
            )
            differences += [
                f"{difference}\n    {request}\n    {response.body[:300]!r}" for difference in found
            ]
    assert not differences, f"{len(differences)} differences:\n" + "\n".join(differences[:20])


async def test_openapi_describes_limit_and_error_headers() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    keys = {
        "a": tenant("a", requests_per_minute=2, tokens_per_minute=1000),
        "poor": tenant("poor", tokens_per_day=1),
    }
    seen: set[str] = set()
    async with serving(keys) as served:
        for key, path in (
            *[
                ("a", "/v1/messages"),
                ("a", "/v1/chat/completions"),
                ("a", "/v1/chat/completions"),
                ("a", "/health"),
            ],
            *[("poor", "/v1/messages"), ("poor", "/v1/messages"), ("none", "/v1/responses")],
        ):
            method = "GET" if path == "/health" else "POST"
            response = await (
                served.get(key, path) if method == "GET" else served.post(key, path, body)
            )
            assert (
                check_response(
                    method, path, response.status_code, dict(response.headers), response.content
                )
                == []
            )
            seen |= response.headers.keys()
    assert {"x-ratelimit-reset-tokens", "anthropic-ratelimit-requests-remaining"} <= seen
    assert {"retry-after", "x-should-retry", "www-authenticate"} <= seen


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        (
            "POST",
            "/v1/chat/completions",
            {"400", "401", "403", "404", "413", "415", "429", "500", "503", "504"},
        ),
        (
            "POST",
            "/v1/messages",
            {"400", "401", "403", "404", "413", "415", "429", "500", "529", "504"},
        ),
        ("POST", "/tokenize", {"400", "401", "403", "413", "415"}),
        ("GET", "/v1/models/{model}", {"401", "403", "404"}),
        ("GET", "/dragoman/requests", {"401", "403"}),
        ("GET", "/version", set[str]()),
    ],
)
def test_openapi_lists_error_statuses_per_route(method: str, path: str, statuses: set[str]) -> None:
    operation = find_operation(method, path)
    assert operation is not None
    described = {
        status for status in operation["responses"] if status.isdigit() and status >= "400"
    }
    assert described == statuses
    assert {"4XX", "5XX"} <= operation["responses"].keys()


EXAMPLE_ROUTES = {
    "ChatRequest": ("/v1/chat/completions", "t"),
    "CompletionRequest": ("/v1/completions", "t"),
    "ResponseRequest": ("/v1/responses", "t"),
    "MessagesRequest": ("/v1/messages", "t"),
    "CountTokensRequest": ("/v1/messages/count_tokens", "t"),
    "EmbeddingRequest": ("/v1/embeddings", "e"),
    "CohereEmbedRequest": ("/v2/embed", "e"),
    "RerankRequest": ("/v1/rerank", "e"),
    "ScoreRequest": ("/v1/score", "e"),
    "DecisionRequest": ("/v1/decisions", "t"),
    "SystemOneRequest": ("/v1/systemone", "t"),
    "TokenGenerationRequest": ("/inference/v1/generate", "t"),
    "SglangRequest": ("/generate", "t"),
    "LlamaCppCompletionRequest": ("/completion", "t"),
    "LlamaCppInfillRequest": ("/infill", "t"),
    "TgiRequest": ("/generate_stream", "t"),
    "TokenizeTextRequest": ("/tokenize", "t"),
    "TokenizeChatRequest": ("/tokenize", "t"),
    "DetokenizeRequest": ("/detokenize", "t"),
    "OllamaChatRequest": ("/api/chat", "t"),
    "OllamaGenerateRequest": ("/api/generate", "t"),
    "OllamaEmbedRequest": ("/api/embed", "e"),
    "OllamaEmbeddingsRequest": ("/api/embeddings", "e"),
    "OllamaModelRequest": ("/api/show", "t"),
    "GeminiRequest": ("/v1beta/models/{model}:generateContent", "t"),
    "GeminiCountRequest": ("/v1beta/models/{model}:countTokens", "t"),
    "GeminiEmbedContent": ("/v1beta/models/{model}:embedContent", "e"),
    "GeminiBatchEmbedContents": ("/v1beta/models/{model}:batchEmbedContents", "e"),
}


def test_openapi_every_body_has_example() -> None:
    assert (
        {name for name, body in BODIES.items() if body.example is not None}
        == set(EXAMPLE_ROUTES)
        == set(BODIES)
    )


async def test_openapi_examples_succeed_unchanged(tmp_path: Path) -> None:
    async with server(tmp_path) as (app, _):
        for name, (path, model) in EXAMPLE_ROUTES.items():
            (example,) = schema_of(name)["examples"]
            assert find_errors({"$ref": REF + name}, example) == []
            body = json.dumps({**example, "model": model}).encode()
            sent_path = path.replace("{model}", model)
            request = Request("POST", path, sent_path, body, {"content-type": "application/json"})
            response = await send_request(app, request)
            assert response.status == 200, (name, response.body)
            assert check_response("POST", path, 200, dict(response.headers), response.body) == []


KEYS = ServingOptions(api_key=("user",), admin_api_key=("root",))


async def test_openapi_lists_only_routes_allowed_for_key() -> None:
    served = build_server(options=KEYS)
    assert (await served.get("/openapi.json")).status_code == 401
    user, admin = [
        (await served.get("/openapi.json", {"authorization": f"Bearer {key}"})).json()
        for key in ("user", "root")
    ]
    operations = [operation for item in user["paths"].values() for operation in item.values()]
    assert {operation.get("x-dragoman-access", "user") for operation in operations} == {
        "public",
        "user",
    }
    assert "/update_weights" in admin["paths"].keys() - user["paths"].keys()
    assert user["paths"]["/v1/chat/completions"]["post"]["security"] == [
        {"bearer": []},
        {"x-api-key": []},
        {"x-goog-api-key": []},
    ]
    generate = "/v1beta/models/{model}:generateContent"
    assert {"key": []} in user["paths"][generate]["post"]["security"]
    assert user["paths"]["/health"]["get"]["security"] == []
    # No components that only admin routes use remain.
    assert "WeightUpdate" not in user["components"]["schemas"]
    assert (await build_server().get("/openapi.json")).json()["paths"].keys() == admin[
        "paths"
    ].keys()


async def test_openapi_with_keys_file_lists_routes_of_key() -> None:
    admin = msgspec.structs.replace(tenant("root"), role="admin")
    async with serving({"a": tenant("a"), "root": admin}) as server:
        user, administrator = [
            (await server.get(key, "/openapi.json")).json() for key in ("a", "root")
        ]
    assert "/update_weights" in administrator["paths"].keys() - user["paths"].keys()
    schemes = user["components"]["securitySchemes"]
    assert {name: scheme.get("in") for name, scheme in schemes.items()} == {
        "bearer": None,
        "x-api-key": "header",
        "x-goog-api-key": "header",
        "key": "query",
    }


@pytest.mark.parametrize(
    "path", ["/openapi.json", "/docs", "/docs/viewer.js", "/docs/viewer.css", "/docs/icon.svg"]
)
async def test_openapi_etag_match_returns_304(path: str) -> None:
    served = build_server()
    first = await served.get(path)
    assert (first.status_code, (await served.get(path)).content) == (200, first.content)
    tag = first.headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await served.get(path, {"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await served.get(path, {"if-none-match": '"other"'})).status_code == 200
    async with served.http() as client:
        head = await client.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (
        200,
        b"",
        str(len(first.content)),
    )


async def test_docs_page_has_no_external_or_inline_resources() -> None:
    served = build_server(options=KEYS)
    page = await served.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert not re.search(r"<style|<script(?![^>]* src=)| on\w+=| style=|https?://", page.text)
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    files = {"docs/viewer.js", "docs/viewer.css", "docs/icon.svg"}
    assert files <= set(linked) <= {*files, "openapi.json"}
    for file in ("viewer.js", "viewer.css"):
        text = (await served.get(f"/docs/{file}")).text
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacent|eval\(|import ", text)


async def test_openapi_mounted_application_returns_same_document() -> None:
    served = build_server()
    scope_path = "/llm/openapi.json"
    plain = (await served.get("/openapi.json")).content
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(served.app, root_path="/llm"), base_url="http://localhost"
    ) as client:
        assert (await client.get(scope_path)).content == plain
