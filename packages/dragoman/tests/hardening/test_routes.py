"""Unprotected routes: vLLM's key protects only /v1, Ollama has none. XSS: Open WebUI
rendered output as HTML.
"""

from __future__ import annotations

import httpx2
import pytest
from tests.serving.harness import ServerHarness, build_server

from dragoman.launch import build_models
from dragoman.pipeline.request_metrics import ModelMetrics
from dragoman.serving.auth import Access
from dragoman.serving.clock import SystemClock
from dragoman.serving.http_metrics import HttpMetrics
from dragoman.serving.route import Route
from dragoman.serving.routes.table import Features, build_routes
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

PUBLIC = {
    "/health",
    "/healthz",
    "/livez",
    "/readyz",
    "/health_generate",
    "/ping",
    "/version",
    "/api/version",
    "/metrics",
    *("/docs", "/docs/viewer.js", "/docs/viewer.css", "/docs/icon.svg"),
    "/ui",
    "/ui/{file}",
}
"""Public routes: they reveal only that the server exists and its health. All others
need a key.
"""
KEYS = ServingOptions(api_key=("user",), admin_api_key=("root",), ui=True)


KINDS = {
    *(
        "application/json",
        "application/x-jsonl",
        "application/octet-stream",
        "application/openmetrics-text",
    ),
    *("text/plain", "text/event-stream", "application/x-ndjson"),
}


def table() -> dict[str, Route]:
    models = build_models(Settings(model="scripted"), SystemClock())
    groups = build_routes(Features(ui=True), ModelMetrics(models, lambda: 0.0), HttpMetrics())
    return {route.path: route for group in groups.values() for route in group}


TABLE = table()
CALLS = [
    (path, method)
    for path, route in TABLE.items()
    for method in (*route.operations, "HEAD", "PATCH", "OPTIONS")
]


def test_routes_declare_access_and_public_routes_are_listed():
    assert all(isinstance(route.access, Access) for route in TABLE.values())
    assert {path for path, route in TABLE.items() if route.access is Access.PUBLIC} == PUBLIC


@pytest.fixture(scope="module")
def server() -> ServerHarness:
    return build_server(options=KEYS)


async def call(
    server: ServerHarness, path: str, method: str, key: str | None = None
) -> httpx2.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with server.http() as client:
        filled = path.replace("{model:path}", "m").replace("{id}", "x").replace("{item}", "y")
        return await client.request(method, filled, headers=headers)


async def test_non_public_routes_without_key_return_401(server: ServerHarness):
    for path, method in CALLS:
        for key in (None, "wrong"):
            answer = await call(server, path, method, key)
            assert (answer.status_code == 401) is (path not in PUBLIC), (path, method)


async def test_admin_routes_with_user_key_return_403(server: ServerHarness):
    for path, method in CALLS:
        if TABLE[path].access is Access.ADMIN:
            assert (await call(server, path, method, "user")).status_code == 403, (path, method)
            assert (await call(server, path, method, "root")).status_code != 403, (path, method)


@pytest.mark.parametrize("path", ["/admin", "/v1", "/docs/x", "/redoc", "//health", "/health/"])
async def test_unknown_route_without_key_returns_401(server: ServerHarness, path: str):
    assert (await call(server, path, "GET")).status_code == 401


PAGES = {
    "/docs": "text/html",
    "/docs/viewer.js": "text/javascript",
    "/docs/viewer.css": "text/css",
    "/docs/icon.svg": "image/svg+xml",
}
"""Static files of the package, with a CSP that allows nothing inline."""


async def test_only_known_pages_return_html(server: ServerHarness):
    """A model's output is never rendered as a page."""
    # The stream of changes never ends; it has its own test.
    for path, method in [call for call in CALLS if call != ("/models/sse", "GET")]:
        answer = await call(server, path, method, "root")
        kind = answer.headers.get("content-type", "application/json").partition(";")[0]
        if path == "/ui":
            continue  # Its own tests hold its policy.
        if kind == PAGES.get(path):
            assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        else:
            assert kind in KINDS, (path, method)
