"""Every route declares its access and the format of its errors, and its errors have
that format.
"""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.serving.harness import ServerHarness, build_server

from dragoman.dialects.anthropic.errors import ANTHROPIC_ERRORS
from dragoman.dialects.gemini.errors import GEMINI_ERRORS
from dragoman.dialects.ollama.errors import OLLAMA_ERRORS
from dragoman.dialects.openai_errors import OPENAI_ERRORS
from dragoman.dialects.registry import BY_CLIENT, ENVELOPES
from dragoman.dialects.responses.errors import RESPONSES_ERRORS
from dragoman.dialects.tgi.errors import TGI_ERRORS
from dragoman.launch import build_models
from dragoman.pipeline.request_metrics import ModelMetrics
from dragoman.serving.auth import Access
from dragoman.serving.clock import SystemClock
from dragoman.serving.http_metrics import HttpMetrics
from dragoman.serving.route import Route
from dragoman.serving.routes.table import Features, build_routes
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings


def build_table() -> dict[str, tuple[Route, ...]]:
    models = build_models(Settings(model="scripted"), SystemClock())
    groups = build_routes(Features(), ModelMetrics(models, lambda: 0.0), HttpMetrics())
    return {module: tuple(routes) for module, routes in groups.items()}


TABLE = build_table()
ROUTES = [route for routes in TABLE.values() for route in routes]
FROM_ANTHROPIC = {"anthropic-version": "2023-06-01"}
USER = {"authorization": "Bearer user"}
ADMIN = {"authorization": "Bearer root"}


@pytest.fixture(scope="module")
def server() -> ServerHarness:
    return build_server(options=ServingOptions(api_key=("user",), admin_api_key=("root",)))


async def send(
    server: ServerHarness, method: str, path: str, *headers: dict[str, str]
) -> httpx2.Response:
    async with server.http() as client:
        merged = {name: value for some in headers for name, value in some.items()}
        return await client.request(method, path, headers=merged)


def fill(path: str) -> str:
    for pattern in ("{model:path}", "{id}", "{item}", "{file}", "{batch}", "{digest}"):
        path = path.replace(pattern, "x")
    assert "{" not in path
    return path


def find_format(answer: httpx2.Response) -> str:
    """Return the dialect whose SDK can parse the error."""
    body: Any = answer.json()
    match body:
        case {"type": "error", "error": {"type": str(), "message": str()}, "request_id": str()}:
            return "Anthropic"
        case {"error": str(), "error_type": str()}:
            return "TGI"
        case {"error": str()} if len(body) == 1:
            return "Ollama"
        case {"error": {"message": str(), "type": str(), "param": _, "code": _}}:
            return "OpenAI"
        case {"error": {"code": int(), "message": str(), "status": str()}}:
            return "Gemini"
        case _:
            raise AssertionError(body)


FORMATS = {
    **{envelope.name: "OpenAI" for envelope in (OPENAI_ERRORS, RESPONSES_ERRORS, BY_CLIENT)},
    ANTHROPIC_ERRORS.name: "Anthropic",
    OLLAMA_ERRORS.name: "Ollama",
    GEMINI_ERRORS.name: "Gemini",
    TGI_ERRORS.name: "TGI",
}


def test_routes_declare_access_and_envelope():
    assert len(ROUTES) > 80
    for route in ROUTES:
        assert isinstance(route.access, Access), route.path
        assert route.envelope in (*ENVELOPES, BY_CLIENT), route.path
        assert route.operations, route.path
    assert all(TABLE.values())


def test_routes_have_unique_paths():
    paths = [route.path for route in ROUTES]
    assert len(set(paths)) == len(paths)


def test_routes_of_dialect_use_envelope_of_dialect():
    below = {
        "/v1/messages": ANTHROPIC_ERRORS,
        "/v1/responses": RESPONSES_ERRORS,
        "/v1/chat": OPENAI_ERRORS,
        "/v1/conversations": OPENAI_ERRORS,
        "/api/": OLLAMA_ERRORS,
        "/v1beta": GEMINI_ERRORS,
    }
    for prefix, envelope in below.items():
        chosen = [
            route
            for route in ROUTES
            # LM Studio's routes are below Ollama's `/api/`.
            if route.path.startswith(prefix) and not route.path.startswith(("/api/v0/", "/api/v1/"))
        ]
        assert chosen
        assert [route.path for route in chosen if route.envelope is not envelope] == []
    assert {route.path for route in ROUTES if route.envelope is TGI_ERRORS} == {
        "/",
        "/info",
        "/generate_stream",
    }
    assert {
        route.path.partition("{")[0].strip("/") for route in ROUTES if route.envelope is BY_CLIENT
    } == {
        "v1/models",
        "v1/files",
    }


@pytest.mark.parametrize("headers", [{}, FROM_ANTHROPIC], ids=["plain", "anthropic"])
async def test_routes_missing_key_returns_401_in_envelope(
    server: ServerHarness, headers: dict[str, str]
):
    for route in ROUTES:
        if route.access is Access.PUBLIC:
            continue
        method = next(iter(route.operations))
        answer = await send(server, method, fill(route.path), headers)
        assert answer.status_code == 401, route.path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert find_format(answer) == FORMATS[route.envelope.resolve(headers).name], route.path


@pytest.mark.parametrize("headers", [{}, FROM_ANTHROPIC], ids=["plain", "anthropic"])
async def test_routes_wrong_method_returns_405_in_envelope(
    server: ServerHarness, headers: dict[str, str]
):
    for route in ROUTES:
        assert "PATCH" not in route.operations
        answer = await send(server, "PATCH", fill(route.path), headers, ADMIN)
        assert answer.status_code == 405, route.path
        allowed = set(answer.headers["allow"].split(", "))
        assert allowed == {*route.operations, *(("HEAD",) if "GET" in route.operations else ())}, (
            route.path
        )
        assert find_format(answer) == FORMATS[route.envelope.resolve(headers).name], route.path


async def test_admin_routes_user_key_returns_403_in_envelope(
    server: ServerHarness,
):
    routes = [route for route in ROUTES if route.access is Access.ADMIN]
    assert routes
    for route in routes:
        answer = await send(server, next(iter(route.operations)), fill(route.path), USER)
        assert (answer.status_code, find_format(answer)) == (403, FORMATS[route.envelope.name]), (
            route.path
        )


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("/v1/messages/unknown", "Anthropic"),
        ("/v1/messages/batches/x/unknown", "Anthropic"),
        ("/v1/messages/", "Anthropic"),
        ("/v1/responses/x/y/z", "OpenAI"),
        ("/v1/messages_of_another_kind", "OpenAI"),
        ("/info/unknown", "TGI"),
        ("/v1beta/unknown", "Gemini"),
        ("/unknown", "OpenAI"),
        ("/unknown/", "OpenAI"),
        ("/v1/unknown", "OpenAI"),
    ],
)
async def test_unknown_path_uses_envelope_of_nearest_parent_route(
    server: ServerHarness, path: str, format: str
):
    for headers, status in (({}, 401), (USER, 404)):
        answer = await send(server, "GET", path, headers)
        assert (answer.status_code, find_format(answer)) == (status, format), path


async def test_unknown_path_without_parent_uses_client_envelope(
    server: ServerHarness,
):
    answer = await send(server, "POST", "/v1/unknown", USER, FROM_ANTHROPIC)
    assert (answer.status_code, find_format(answer)) == (404, "Anthropic")
    # A path that only OpenAI has stays OpenAI's.
    answer = await send(server, "POST", "/v1/responses/x/unknown", USER, FROM_ANTHROPIC)
    assert (answer.status_code, find_format(answer)) == (404, "OpenAI")
