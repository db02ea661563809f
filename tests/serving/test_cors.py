"""Which pages' scripts may talk to this server, as a browser is told."""

from __future__ import annotations

import httpx2
import pytest
from starlette.datastructures import Headers

from dragoman.core.errors import PermissionDenied
from dragoman.launch import build_models
from dragoman.launch.server import build_serving_options
from dragoman.serving.app import create_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.cors import CorsPolicy
from dragoman.settings import Settings, SettingsError

HERE, APP, OTHER = "http://localhost:8000", "https://app.example", "https://evil.example"
ASKS = {"access-control-request-method": "POST"}


def asked(origin: str | None = None, **more: str) -> Headers:
    given = {name.replace("_", "-"): value for name, value in more.items()}
    return Headers({"host": "localhost:8000", **({} if origin is None else {"origin": origin}), **given})


def head(origins: CorsPolicy, origin: str | None) -> dict[bytes, bytes]:
    return dict(origins.build_headers(asked(origin)))


def test_by_default_an_answer_says_nothing_of_it():
    assert CorsPolicy().build_headers(asked(APP)) == []


def test_who_is_allowed_by_name_is_named_and_caches_are_told():
    origins = CorsPolicy([APP, "http://localhost:3000"])
    assert head(origins, APP)[b"access-control-allow-origin"] == APP.encode()
    assert head(origins, APP)[b"vary"] == b"origin"
    assert b"x-request-id" in head(origins, APP)[b"access-control-expose-headers"]
    assert head(origins, OTHER) == head(origins, None) == {b"vary": b"origin"}


def test_a_star_is_said_to_everybody_alike():
    assert head(CorsPolicy(["*"]), OTHER) == head(CorsPolicy(["*"]), None)
    assert head(CorsPolicy(["*"]), OTHER)[b"access-control-allow-origin"] == b"*"


@pytest.mark.parametrize("allowed", [[APP], ["*"]])
def test_what_is_asked_beforehand_is_answered_for_who_may(allowed: list[str]):
    wish = asked(APP, **ASKS, access_control_request_headers="authorization,content-type,x-stainless-os")
    told = dict(CorsPolicy(allowed).build_preflight_headers("OPTIONS", wish, ["GET", "POST"]) or [])
    assert told[b"access-control-allow-methods"] == b"GET, POST"
    assert told[b"access-control-allow-headers"] == b"authorization,content-type,x-stainless-os"
    assert b"access-control-allow-private-network" not in told


def test_a_page_from_outside_may_ask_a_server_within():
    wish = asked(APP, **ASKS, access_control_request_private_network="true")
    told = dict(CorsPolicy([APP]).build_preflight_headers("OPTIONS", wish, ["POST"]) or [])
    assert told[b"access-control-allow-private-network"] == b"true"


@pytest.mark.parametrize(
    ("allowed", "method", "headers"),
    [
        ([], "OPTIONS", asked(APP, **ASKS)),
        ([APP], "OPTIONS", asked(OTHER, **ASKS)),
        ([APP], "OPTIONS", asked(**ASKS)),
        ([APP], "OPTIONS", asked(APP)),
        ([APP], "POST", asked(APP, **ASKS)),
    ],
)
def test_anything_else_is_a_request_like_others(allowed: list[str], method: str, headers: Headers):
    assert CorsPolicy(allowed).build_preflight_headers(method, headers, ["POST"]) is None


@pytest.mark.parametrize("names", ["x\r\nset-cookie: a", "a b", "x" * 5000, "é"])
def test_names_that_are_none_are_not_said_again(names: str):
    wish = Headers(raw=[(b"origin", APP.encode()), *_raw(ASKS), (b"access-control-request-headers", names.encode())])
    told = dict(CorsPolicy([APP]).build_preflight_headers("OPTIONS", wish, ["POST"]) or [])
    assert b"access-control-allow-headers" not in told


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
def test_what_a_browser_does_not_ask_for_beforehand(allowed: list[str], origin: str | None, named: bool, passes: bool):
    if passes:
        CorsPolicy(allowed).check_origin(asked(origin), by_name=named)
    else:
        with pytest.raises(PermissionDenied):
            CorsPolicy(allowed).check_origin(asked(origin), by_name=named)


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://a b", "https://u@a", '["*"]', ""])
def test_what_no_browser_sends_is_a_mistake(origin: str):
    with pytest.raises(ValueError, match="origin is SCHEME"):
        CorsPolicy([origin])


def client(*allowed: str) -> httpx2.AsyncClient:
    settings = Settings(model="scripted", allowed_origins=allowed, api_key=("mine",), admin_api_key=("boss",))
    app = create_app(build_models(settings, SystemClock()), options=build_serving_options(settings))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:8000")


async def test_a_browser_asks_without_a_key_and_reads_the_refusal_of_what_it_then_sends():
    async with client(APP) as http:
        asked = await http.options("/v1/chat/completions", headers={"origin": APP, **ASKS})
        assert (asked.status_code, asked.headers["access-control-allow-methods"]) == (200, "POST, GET")
        for path in ("/v1/chat/completions", "/nowhere"):
            answer = await http.post(path, json={}, headers={"origin": APP})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, APP)


async def test_a_page_that_may_not_is_told_nothing():
    async with client(APP) as http:
        asked = await http.options("/v1/chat/completions", headers={"origin": OTHER, **ASKS})
        assert asked.status_code == 403
        assert not [name for name in asked.headers if name.startswith("access-control")]


@pytest.mark.parametrize(("allowed", "status"), [(APP, 200), ("*", 403)])
async def test_what_administrators_order_no_page_orders_that_is_not_named(allowed: str, status: int):
    async with client(allowed) as http:
        assert (await http.options("/pause", headers={"origin": APP, **ASKS})).status_code == status


def test_a_wrong_origin_is_told_at_the_start():
    with pytest.raises(SettingsError, match="--allowed-origins: an origin is"):
        build_serving_options(Settings(allowed_origins=("app.example",)))
