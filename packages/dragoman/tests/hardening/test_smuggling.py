"""Request smuggling: the server and a proxy in front never parse bytes differently (RFC
9112, 11.2). Heads are limited.

vLLM CVE-2025-48956: headers without a limit. Chunks: CVE-2019-16786 and similar ones of
other servers.
"""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send
from tests.http.wire import HEAD, answers, body_of, echo, serving

from dragoman.http.limits import HttpLimits

POST = b"POST / " + HEAD
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
SECOND = b"GET /second " + HEAD + b"connection: close\r\n\r\n"

AMBIGUOUS = {
    "both lengths": POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other way round": POST
    + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "the same length twice": POST + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"content-length: 3, 3\r\n\r\nabc",
    "a sign": POST + b"content-length: +3\r\n\r\nabc",
    "a negative length": POST + b"content-length: -3\r\n\r\nabc",
    "an underscore": POST + b"content-length: 1_0\r\n\r\nabc",
    "hexadecimal": POST + b"content-length: 0x3\r\n\r\nabc",
    "an empty length": POST + b"content-length:\r\n\r\nabc",
    "a huge length": POST + b"content-length: " + b"9" * 30 + b"\r\n\r\nabc",
    "another coding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"transfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked is not the last": POST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": POST
    + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in one line twice": POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "an empty coding": POST + b"transfer-encoding:\r\n\r\n0\r\n\r\n",
    "a vertical tab": POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"content-length : 3\r\n\r\nabc",
    "a folded line": POST + b"x: y\r\n content-length: 3\r\n\r\nabc",
    "a folded first line": b"POST / HTTP/1.1\r\n host: h\r\n\r\n",
    "bare line feeds": POST.replace(b"\r\n", b"\n") + b"\n",
    "one bare line feed": POST + b"x: y\ncontent-length: 3\r\n\r\nabc",
    "a bare carriage return": POST + b"x: y\rcontent-length: 3\r\n\r\nabc",
    "NUL": POST + b"x: y\0\r\n\r\n",
    "NUL in a name": POST + b"x\0: y\r\n\r\n",
    "a name of no characters": POST + b": y\r\n\r\n",
    "a line without a colon": POST + b"nonsense\r\n\r\n",
    "a header that is not ASCII": POST + b"x\xff: y\r\n\r\n",
    "a path that is not ASCII": b"GET /\xc3\xa9 " + HEAD + b"\r\n",
    "a space in the path": b"GET /a b " + HEAD + b"\r\n",
    "no path": b"GET foo " + HEAD + b"\r\n",
    "no method": b"/ " + HEAD + b"\r\n",
    "a method in lower case": b"get / " + HEAD + b"\r\n",
    "TLS to a port without it": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}
CHUNKS = {
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "a size with 0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a signed size": b"+3\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "an underscore": b"1_0\r\nabc\r\n0\r\n\r\n",
    "a space after the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "a space before the size": b" 3\r\nabc\r\n0\r\n\r\n",
    "a size that overflows": b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n",
    "a bare line feed after the size": b"3\nabc\r\n0\r\n\r\n",
    "a bare line feed after the data": b"3\r\nabc\n0\r\n\r\n",
    "data longer than the size": b"3\r\nabcd\r\n0\r\n\r\n",
    "data longer by what looks like an end": b"3\r\nabc0\r\n\r\n",
    "an extension with a carriage return": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "an extension without an end": b"3;" + b"a" * 2000,
    "a size without an end": b"0" * 2000,
    "a folded trailer": b"0\r\n x: y\r\n\r\n",
    "a trailer without a colon": b"0\r\nnonsense\r\n\r\n",
    "a trailer with a bare line feed": b"0\r\nx: y\n\r\n",
    "trailers without an end": b"0\r\n" + b"x: y\r\n" * 2000,
}


@pytest.mark.parametrize("head", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_ambiguous_head_is_rejected_and_rest_is_not_parsed(
    head: bytes,
) -> None:
    async with serving(echo, HttpLimits(linger_timeout=0.01)) as wire:
        statuses = answers(await wire.ask(head + SECOND))
        assert wire.state.total_requests == 0
    assert [(each.status, each.headers["connection"]) for each in statuses] == [(400, "close")]


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
async def test_malformed_chunks_are_rejected_and_rest_is_not_parsed(chunks: bytes) -> None:
    async with serving(echo, HttpLimits(linger_timeout=0.01)) as wire:
        statuses = answers(await wire.ask(CHUNKED + chunks + SECOND))
        assert wire.state.total_requests == 0
    assert [each.status // 100 for each in statuses] == [4]


async def test_started_response_is_cut_off_when_body_is_malformed() -> None:
    """A second response after half of the first would be parsed as part of it."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await body_of(receive)

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(CHUNKED)
        assert (await reader.readuntil(b"begun\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"nonsense\r\n" + SECOND)
        assert await reader.read(-1) == b""
        writer.close()


LIMIT = 1000
ROOM = LIMIT - len(b"GET / " + HEAD + b"x: \r\nconnection: close\r\n\r\n")


def build_head(size: int) -> bytes:
    return b"GET / " + HEAD + b"x: " + b"y" * size + b"\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (build_head(ROOM), 200),
        (build_head(ROOM + 1), 431),
        (build_head(100 * LIMIT), 431),
        (build_head(100 * LIMIT)[:-40], 431),
        (b"GET /" + b"a" * LIMIT + b" " + HEAD + b"\r\n", 414),
        (b"GET /" + b"a" * 100 * LIMIT, 414),
    ],
)
async def test_request_head_over_limits_is_rejected(request_: bytes, status: int) -> None:
    async with serving(echo, HttpLimits(max_head_bytes=LIMIT, linger_timeout=0.01)) as wire:
        [answer] = answers(await wire.ask(request_))
    assert answer.status == status
    if status != 200:
        assert str(LIMIT) in answer.body.decode()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nhost: h\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nhost: h\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"CONNECT h:80 HTTP/1.1\r\nhost: h\r\n\r\n", 405),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    ],
)
async def test_unsupported_protocol_features_are_rejected(request_: bytes, status: int) -> None:
    async with serving(echo, HttpLimits(linger_timeout=0.01)) as wire:
        assert [each.status for each in answers(await wire.ask(request_))] == [status]


async def test_rejection_reaches_client_still_sending() -> None:
    """If the server closed with unread bytes, the client's system would discard the
    response.
    """
    async with serving(echo) as wire:
        reader, writer = await wire.connect()
        writer.write(POST + b"x: " + b"y" * 5_000_000)
        [answer] = answers(await reader.read(-1))
        writer.close()
    assert answer.status == 431
