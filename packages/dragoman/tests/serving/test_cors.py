"""CORS headers: origins whose scripts may use this server."""

from __future__ import annotations

import httpx2
import pytest
from starlette.datastructures import Headers

from dragoman.core.errors import PermissionDenied
from dragoman.launch import build_models
from dragoman.launch.server_assembly import build_serving_options
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.cors import CorsPolicy
from dragoman.settings import Settings, SettingsError

HERE = "http://localhost:8000"
APP = "https://app.example"
OTHER = "https://evil.example"
ASKS = {"access-control-request-method": "POST"}


def build_request_headers(origin: str | None = None, **more: str) -> Headers:
    header_fields = {name.replace("_", "-"): value for name, value in more.items()}
    return Headers(
        {
            "host": "localhost:8000",
            **({} if origin is None else {"origin": origin}),
            **header_fields,
        }
    )


def head(origins: CorsPolicy, origin: str | None) -> dict[bytes, bytes]:
    return dict(origins.build_headers(build_request_headers(origin)))


def test_cors_default_policy_adds_no_headers():
    assert CorsPolicy().build_headers(build_request_headers(APP)) == []


def test_cors_allowed_origin_echoed_with_vary():
    origins = CorsPolicy([APP, "http://localhost:3000"])
    assert head(origins, APP)[b"access-control-allow-origin"] == APP.encode()
    assert head(origins, APP)[b"vary"] == b"origin"
    assert b"x-request-id" in head(origins, APP)[b"access-control-expose-headers"]
    assert head(origins, OTHER) == head(origins, None) == {b"vary": b"origin"}


def test_cors_wildcard_sent_to_every_origin():
    assert head(CorsPolicy(["*"]), OTHER) == head(CorsPolicy(["*"]), None)
    assert head(CorsPolicy(["*"]), OTHER)[b"access-control-allow-origin"] == b"*"


@pytest.mark.parametrize("allowed", [[APP], ["*"]])
def test_cors_preflight_allowed_origin_returns_headers(allowed: list[str]):
    wish = build_request_headers(
        APP, **ASKS, access_control_request_headers="authorization,content-type,x-stainless-os"
    )
    headers = dict(
        CorsPolicy(allowed).build_preflight_headers("OPTIONS", wish, ["GET", "POST"]) or []
    )
    assert headers[b"access-control-allow-methods"] == b"GET, POST"
    assert headers[b"access-control-allow-headers"] == b"authorization,content-type,x-stainless-os"
    assert b"access-control-allow-private-network" not in headers


def test_cors_preflight_private_network_allowed():
    wish = build_request_headers(APP, **ASKS, access_control_request_private_network="true")
    headers = dict(CorsPolicy([APP]).build_preflight_headers("OPTIONS", wish, ["POST"]) or [])
    assert headers[b"access-control-allow-private-network"] == b"true"


@pytest.mark.parametrize(
    ("allowed", "method", "headers"),
    [
        ([], "OPTIONS", build_request_headers(APP, **ASKS)),
        ([APP], "OPTIONS", build_request_headers(OTHER, **ASKS)),
        ([APP], "OPTIONS", build_request_headers(**ASKS)),
        ([APP], "OPTIONS", build_request_headers(APP)),
        ([APP], "POST", build_request_headers(APP, **ASKS)),
    ],
)
def test_cors_non_preflight_request_not_handled(allowed: list[str], method: str, headers: Headers):
    assert CorsPolicy(allowed).build_preflight_headers(method, headers, ["POST"]) is None


@pytest.mark.parametrize("names", ["x\r\nset-cookie: a", "a b", "x" * 5000, "é"])
def test_invalid_header_names_are_not_echoed(names: str):
    wish = Headers(
        raw=[
            (b"origin", APP.encode()),
            *_raw(ASKS),
            (b"access-control-request-headers", names.encode()),
        ]
    )
    headers = dict(CorsPolicy([APP]).build_preflight_headers("OPTIONS", wish, ["POST"]) or [])
    assert b"access-control-allow-headers" not in headers


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("allowed", "origin", "named", "passes"),
    [
        ([], None, True, True),
        ([], HERE, True, True),
        ([], OTHER, False, False),
        ([APP], APP, True, True),
        ([APP], OTHER, False, False),
        (["*"], OTHER, False, True),
        (["*"], OTHER, True, False),
        ([], "null", False, False),
        (["null"], "null", False, True),
    ],
)
def test_cors_check_origin_without_preflight(
    allowed: list[str], origin: str | None, named: bool, passes: bool
):
    if passes:
        CorsPolicy(allowed).check_origin(build_request_headers(origin), by_name=named)
    else:
        with pytest.raises(PermissionDenied):
            CorsPolicy(allowed).check_origin(build_request_headers(origin), by_name=named)


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://a b", "https://u@a", '["*"]', ""]
)
def test_cors_policy_invalid_origin_raises_error(origin: str):
    with pytest.raises(ValueError, match="origin is SCHEME"):
        CorsPolicy([origin])


def client(*allowed: str) -> httpx2.AsyncClient:
    settings = Settings(
        model="scripted", allowed_origins=allowed, api_key=("mine",), admin_api_key=("boss",)
    )
    app = build_asgi_app(
        build_models(settings, SystemClock()), options=build_serving_options(settings)
    )
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:8000")


async def test_cors_preflight_needs_no_key_and_401_has_headers():
    async with client(APP) as http:
        preflight = await http.options("/v1/chat/completions", headers={"origin": APP, **ASKS})
        assert (preflight.status_code, preflight.headers["access-control-allow-methods"]) == (
            200,
            "POST, GET",
        )
        for path in ("/v1/chat/completions", "/nowhere"):
            answer = await http.post(path, json={}, headers={"origin": APP})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, APP)


async def test_cors_preflight_other_origin_returns_403():
    async with client(APP) as http:
        preflight = await http.options("/v1/chat/completions", headers={"origin": OTHER, **ASKS})
        assert preflight.status_code == 403
        assert not [name for name in preflight.headers if name.startswith("access-control")]


@pytest.mark.parametrize(("allowed", "status"), [(APP, 200), ("*", 403)])
async def test_cors_admin_routes_require_named_origin(allowed: str, status: int):
    async with client(allowed) as http:
        assert (await http.options("/pause", headers={"origin": APP, **ASKS})).status_code == status


def test_cors_setting_invalid_origin_raises_settings_error():
    with pytest.raises(SettingsError, match="--allowed-origins: an origin is"):
        build_serving_options(Settings(allowed_origins=("app.example",)))
