"""The server's responses equal those of uvicorn's own protocol, except where uvicorn's
are wrong.
"""

from __future__ import annotations

import pytest
from tests.hardening.test_smuggling import AMBIGUOUS
from tests.http.wire import HEAD, Answer, answers, echo, serving, stream

from dragoman.http.limits import HttpLimits

LAST = b"connection: close\r\n\r\n"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
WELL_FORMED = {
    "get": b"GET / " + HEAD + LAST,
    "empty lines before": b"\r\n\r\nGET / " + HEAD + LAST,
    "head": b"HEAD / " + HEAD + LAST,
    "options of everything": b"OPTIONS * " + HEAD + LAST,
    "delete": b"DELETE /a " + HEAD + LAST,
    "query": b"GET /a?b=c&d=%20 " + HEAD + LAST,
    "two question marks": b"GET /a?b?c " + HEAD + LAST,
    "escapes": b"GET /%61%2F%C3%A9%ff " + HEAD + LAST,
    "a fragment": b"GET /a#b " + HEAD + LAST,
    "two slashes": b"GET //a//b " + HEAD + LAST,
    "of a proxy": b"GET http://h:80/a?b " + HEAD + LAST,
    "headers of any case": b"GET / HTTP/1.1\r\nHOST: h\r\nX-Y: Z\r\nConnection: Close\r\n\r\n",
    "a header twice": b"GET / " + HEAD + b"x: a\r\nx: b\r\n" + LAST,
    "an empty header": b"GET / " + HEAD + b"x:\r\n" + LAST,
    "bytes beyond ASCII": b"GET / " + HEAD + b"x: \xc3\xa9\r\n" + LAST,
    "a body": b"POST / " + HEAD + b"content-length: 5\r\n" + LAST + b"hello",
    "a body of nothing": b"POST / " + HEAD + b"content-length: 0\r\n" + LAST,
    "no body": b"POST / " + HEAD + LAST,
    "chunks": b"POST / " + HEAD + b"transfer-encoding: Chunked\r\n" + LAST + HELLO,
    "a body of a get": b"GET / " + HEAD + b"content-length: 5\r\n" + LAST + b"hello",
    "HTTP/1.0": b"GET / HTTP/1.0\r\n\r\n",
    "two requests": b"GET /a " + HEAD + b"\r\nGET /b " + HEAD + LAST,
    "nothing after the last": b"GET /a " + HEAD + LAST + b"GET /b " + HEAD + LAST,
    "many headers": b"GET / " + HEAD + b"x: y\r\n" * 500 + LAST,
}
DIFFERENT = {
    "too large": (b"GET / " + HEAD + b"x: " + b"y" * 40_000 + b"\r\n" + LAST, 431, 200),
    "a proxy's without a path": (b"GET http://h " + HEAD + LAST, 200, 400),
    "a tunnel": (b"CONNECT other:80 " + HEAD + b"\r\n", 405, 400),
    "an older HTTP": (b"GET / HTTP/0.9\r\n\r\n", 505, 200),
    "a newer HTTP": (b"GET / HTTP/2.0\r\n" + LAST, 505, 200),
    "another coding": (b"POST / " + HEAD + b"transfer-encoding: gzip, chunked\r\n" + LAST + HELLO,
    501, 200),
    "chunks that HTTP/1.0 does not have": (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n" + HELLO, 400, 200),  # noqa: E501
}  # fmt: skip


async def ask(data: bytes, *, theirs: bool, streamed: bool = False) -> list[Answer]:
    async with serving(
        stream if streamed else echo, HttpLimits(linger_timeout=0.01), theirs=theirs
    ) as wire:
        return answers(await wire.ask(data), data.lstrip().split(b" ")[0].decode())


@pytest.mark.parametrize("data", WELL_FORMED.values(), ids=WELL_FORMED)
async def test_response_equals_uvicorn_response(data: bytes) -> None:
    assert await ask(data, theirs=False) == await ask(data, theirs=True)


@pytest.mark.parametrize("data", WELL_FORMED.values(), ids=WELL_FORMED)
async def test_stream_equals_uvicorn_stream_except_http_1_0_chunks(data: bytes) -> None:
    ours, theirs = (
        await ask(data, theirs=False, streamed=True),
        await ask(data, theirs=True, streamed=True),
    )
    if b"HTTP/1.0" in data:
        assert theirs[0].headers.pop("transfer-encoding") == "chunked"
    assert ours == theirs


TELLS_NO_MORE = {"TLS to a port without it", "HTTP/2"}
"""Cases in which uvicorn waits for more bytes."""
TAKEN = {"chunks in HTTP/1.0"}


@pytest.mark.parametrize("name", sorted(AMBIGUOUS.keys() - TELLS_NO_MORE - TAKEN))
async def test_ambiguous_request_returns_400_like_uvicorn(name: str) -> None:
    ours, theirs = await ask(AMBIGUOUS[name], theirs=False), await ask(AMBIGUOUS[name], theirs=True)
    assert [each.status for each in ours] == [each.status for each in theirs] == [400]


@pytest.mark.parametrize(("data", "ours", "theirs"), DIFFERENT.values(), ids=DIFFERENT)
async def test_status_differs_from_uvicorn_in_known_cases(
    data: bytes, ours: int, theirs: int
) -> None:
    assert [each.status for each in await ask(data, theirs=False)] == [ours]
    assert [each.status for each in await ask(data, theirs=True)] == [theirs]
