"""A page of another origin cannot use a server on the user's machine (CSRF).

Browsers send without a preflight: GET, HEAD, and POST with a form's content type or
with a body without a type.
"""

from __future__ import annotations

import httpx2
import pytest
from tests.serving.harness import ServerHarness, build_server

from dragoman.engines.scripted import Say, ScriptEntry
from dragoman.serving.auth import Access
from dragoman.serving.cors import CorsPolicy
from dragoman.serving.serving_options import ServingOptions

from .test_routes import CALLS, TABLE

APP = "https://app.example"
EVIL = "https://evil.example"
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
JSON = {"content-type": "application/json"}
FOREIGN = [
    {"origin": EVIL},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
]


def server(*allowed: str) -> ServerHarness:
    return build_server(
        ScriptEntry((Say("hi"),), repeat=True), options=ServingOptions(cors=CorsPolicy(allowed))
    )


async def send(
    one: ServerHarness, method: str, path: str, headers: dict[str, str], body: bytes = CHAT
) -> httpx2.Response:
    async with one.http() as client:
        return await client.request(method, path, headers=headers, content=body)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_cross_origin_request_is_rejected_on_every_route(headers: dict[str, str]):
    one = server()
    for path, method in CALLS:
        if TABLE[path].access is not Access.PUBLIC:
            filled = path.replace("{model:path}", "m").replace("{id}", "x").replace("{item}", "y")
            answer = await send(one, method, filled, {**JSON, **headers})
            assert answer.status_code == 403, (path, method)
    assert (await send(one, "GET", "/nowhere", headers)).status_code == 403


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_body_without_json_content_type_returns_415(kind: str):
    headers = {"content-type": kind} if kind else {}
    answer = await send(server(), "POST", "/v1/chat/completions", headers)
    assert answer.status_code == 415


async def test_chunked_body_without_content_type_returns_415():
    async def chunks():
        yield CHAT

    async with server().http() as client:
        answer = await client.post("/v1/chat/completions", content=chunks())
    assert answer.status_code == 415


async def test_empty_body_without_content_type_is_accepted():
    assert (await send(server(), "POST", "/abort_requests", {}, b"")).status_code != 415


async def test_cross_origin_file_upload_returns_403():
    form = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\na\r\n--x--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=x", "origin": EVIL}
    assert (await send(server(), "POST", "/v1/files", headers, form)).status_code == 403


@pytest.mark.parametrize(
    ("allowed", "headers"),
    [
        ((), {}),
        ((), {"sec-fetch-site": "none"}),
        ((), {"origin": "http://localhost", "sec-fetch-site": "same-origin"}),
        ((APP,), {"origin": APP, "sec-fetch-site": "cross-site"}),
        (("*",), {"origin": EVIL, "sec-fetch-site": "cross-site"}),
    ],
)
async def test_same_or_allowed_origin_request_is_served(
    allowed: tuple[str, ...], headers: dict[str, str]
):
    answer = await send(server(*allowed), "POST", "/v1/chat/completions", {**JSON, **headers})
    assert answer.status_code == 200


async def test_cross_site_navigation_opens_only_public_pages():
    link = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    one = server()
    assert (await send(one, "GET", "/", link, b"")).status_code == 200
    assert (await send(one, "GET", "/flush_cache", link, b"")).status_code == 403
    assert (
        await send(one, "GET", "/", {**link, "sec-fetch-dest": "iframe"}, b"")
    ).status_code == 403
    assert (await send(one, "POST", "/v1/chat/completions", {**JSON, **link})).status_code == 403


async def test_wildcard_origin_does_not_allow_admin_routes():
    assert (
        await send(server("*"), "GET", "/flush_cache", {"sec-fetch-site": "cross-site"}, b"")
    ).status_code == 403
