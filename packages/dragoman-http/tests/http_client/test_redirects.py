"""Redirects are followed within a limit, and take no credentials to another origin."""

from __future__ import annotations

import asyncio

import pytest

from dragoman_http import InvalidRedirect, find_redirect, get_following_redirects

from .stub_server import OK, StubServer, open_client, send_responses, serve

HEADERS = {"Authorization": "Bearer secret", "cookie": "c=1", "x-kept": "yes"}


def redirect(location: str, status: int = 302) -> bytes:
    head = f"HTTP/1.1 {status} Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
    return head.encode()


async def follow(url: str, max_redirects: int = 3) -> bytes:
    async with open_client() as http:
        response = await get_following_redirects(http, url, HEADERS, max_redirects=max_redirects)
        try:
            return await response.read_all(1000)
        finally:
            response.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_to_same_origin_keeps_credentials(status: int) -> None:
    async with serve(send_responses(redirect("other?x=1", status), OK)) as stub:
        assert await follow(stub.url) == b"ok"
    first, second = stub.requests
    assert first.startswith(b"GET /path HTTP/1.1\r\n")
    assert second.startswith(b"GET /other?x=1 HTTP/1.1\r\n")
    for request in stub.requests:
        assert b"Authorization: Bearer secret\r\n" in request


async def test_redirect_to_other_origin_drops_credentials_for_good() -> None:
    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(redirect(f"http://127.0.0.1:{first.port}/back"))
        await writer.drain()

    async with serve(handle) as other, serve(send_responses(redirect(other.url), OK)) as first:
        assert await follow(first.url) == b"ok"
    (elsewhere,) = other.requests
    _, back = first.requests
    for request in (elsewhere, back):
        assert b"x-kept: yes\r\n" in request
        assert b"secret" not in request
        assert b"c=1" not in request


async def test_redirects_beyond_limit_raise_invalid_redirect() -> None:
    async with serve(send_responses(*[redirect("/path")] * 4)) as stub:
        with pytest.raises(InvalidRedirect, match="more than 3"):
            await follow(stub.url)
        assert len(stub.requests) == 4


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "http://[", "data:,x", "http://u:p@127.0.0.1/", "http://a:x/"],
)
async def test_redirect_to_unusable_url_raises_invalid_redirect(location: str) -> None:
    async with serve(send_responses(redirect(location))) as stub:
        with pytest.raises(InvalidRedirect, match="cannot be followed"):
            await follow(stub.url)


@pytest.mark.parametrize(
    "response", [OK, b"HTTP/1.1 302 Found\r\ncontent-length: 2\r\n\r\nok", redirect("/x", 304)]
)
async def test_response_without_redirect_is_returned(response: bytes) -> None:
    async with serve(send_responses(response)) as stub, open_client() as http:
        found = await get_following_redirects(http, stub.url, HEADERS, max_redirects=0)
        assert find_redirect(found, stub.url) is None
        found.close()


async def test_find_redirect_location_in_utf8_is_encoded() -> None:
    async with serve(send_responses(redirect("/é"), OK)) as stub:
        assert await follow(stub.url) == b"ok"
    assert stub.requests[1].startswith(b"GET /%C3%A9 HTTP/1.1\r\n")
