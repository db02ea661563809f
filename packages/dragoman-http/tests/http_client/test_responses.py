"""Responses of servers: whole, split or truncated at every position, malformed, and
compressed.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from dragoman_http import HttpClient, HttpClientError, InvalidResponse, ProxyRules
from dragoman_http.response import MAX_PIECE, build_decoder

from .stub_server import CHUNKED, StubServer, fetch_body, open_client, send_responses, serve

HEAD = b"HTTP/1.1 200 OK\r\n"
RESPONSES = {
    "chunked": CHUNKED + b"3\r\nabc\r\na;x=y\r\ndefghijklm\r\n0\r\ntrailer: t\r\n\r\n",
    "length": HEAD + b"content-length: 13\r\n\r\nabcdefghijklm",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    + HEAD
    + b"Content-Length:13\r\n\r\nabcdefghijklm",
}


def split_in_two(first: bytes, second: bytes) -> list[bytes]:
    return [part for part in (first, second) if part]


async def feed(
    stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: list[bytes]
) -> None:
    await stub.read_request(reader)
    for part in parts:
        writer.write(part)
        for _ in range(4):
            # The client reads each part separately.
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", RESPONSES)
async def test_response_split_at_any_position_is_parsed(name: str) -> None:
    data = RESPONSES[name]
    cuts = [split_in_two(data[:at], data[at:]) for at in range(len(data))] + [
        [bytes([byte]) for byte in data]
    ]

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for parts in cuts:
            await feed(stub, reader, writer, parts)

    async with serve(handle) as stub, open_client() as http:
        for _ in cuts:
            assert await fetch_body(http, stub.url) == b"abcdefghijklm"
        assert stub.connections == 1


@pytest.mark.parametrize("name", RESPONSES)
async def test_response_truncated_at_any_position_raises_error(name: str) -> None:
    data = RESPONSES[name]

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await feed(stub, reader, writer, [data[: stub.connections - 1]])

    async with serve(handle) as stub, open_client() as http:
        for _ in range(len(data)):
            with pytest.raises(HttpClientError):
                await fetch_body(http, stub.url)
        assert await fetch_body(http, stub.url) == b"abcdefghijklm"
        assert stub.connections == len(data) + 1


async def test_body_without_length_ends_at_connection_close() -> None:
    async with serve(send_responses(HEAD + b"\r\nabc")) as stub, open_client() as http:
        assert [await fetch_body(http, stub.url) for _ in range(2)] == [b"abc"] * 2
        assert stub.connections == 2


async def test_response_without_body_is_complete() -> None:
    async with (
        serve(send_responses(*[b"HTTP/1.1 204 No Content\r\n\r\n"] * 2)) as stub,
        open_client() as http,
    ):
        assert [await fetch_body(http, stub.url) for _ in range(2)] == [b"", b""]
        assert stub.connections == 1


async def test_response_to_head_has_no_body() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    async with serve(send_responses(head)) as stub, open_client() as http:
        response = await http.send("HEAD", stub.url, {})
        assert (response.headers["content-length"], await response.read()) == ("5", None)
        assert stub.requests[0].startswith(b"HEAD /path HTTP/1.1")


async def test_raw_headers_keep_repeated_names_apart() -> None:
    answer = HEAD + b"Set-Cookie: a=1\r\nset-cookie: b=2, c\r\ncontent-length: 0\r\n\r\n"
    async with serve(send_responses(answer)) as stub, open_client() as http:
        response = await http.send("GET", stub.url, [("x-a", "1"), ("x-a", "2")])
        assert response.headers["set-cookie"] == "a=1, b=2, c"
        assert list(response.raw_headers) == [
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2, c"),
            (b"content-length", b"0"),
        ]
        assert b"x-a: 1\r\nx-a: 2\r\n" in stub.requests[0]


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"unknown"])
async def test_body_is_as_sent_without_decoding(coding: bytes) -> None:
    answer = HEAD + b"content-encoding: %s\r\ncontent-length: 3\r\n\r\nabc" % coding
    http = HttpClient(proxies=ProxyRules({}), decodes_bodies=False)
    async with serve(send_responses(answer)) as stub:
        response = await http.send("GET", stub.url, {})
        assert response.headers["content-encoding"] == coding.decode()
        assert await response.read_all(10) == b"abc"
        await http.close()


async def test_redirect_is_not_followed() -> None:
    redirect = b"HTTP/1.1 301 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
    async with serve(send_responses(redirect)) as stub, open_client() as http:
        response = await http.send("GET", stub.url, {})
        assert (response.status, response.headers["location"]) == (301, "/elsewhere")
        assert len(stub.requests) == 1


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"content-length: 2\r\ncontent-length: 2\r\n\r\nok",
        HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok",
        HEAD + b"content-length: 2, 2\r\n\r\nok",
        HEAD + b"content-length: +2\r\n\r\nok",
        HEAD + b"content-length: 99999999999999999999\r\n\r\nok",
        HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        HEAD
        + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 99 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1  200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"ICY 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        HEAD + b"content-length: 2\nx: y\r\n\r\nok",
        HEAD + b"x: y\r\n folded\r\ncontent-length: 2\r\n\r\nok",
        HEAD + b"x : y\r\ncontent-length: 2\r\n\r\nok",
        HEAD + b"x: \x00\r\ncontent-length: 2\r\n\r\nok",
        HEAD + b"content-encoding: br\r\ncontent-length: 2\r\n\r\nok",
        CHUNKED + b"x\r\nok\r\n0\r\n\r\n",
        CHUNKED + b"2\r\nokk\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\nok",
        CHUNKED + b"-2\r\nok\r\n0\r\n\r\n",
        CHUNKED + b"2\r\nok\r\n0\r\n" + b"x: " + b"y" * 1_000_000,
        CHUNKED + b"2;" + b"y" * 1_000_000,
        HEAD + b"content-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        HEAD + b"content-length: 2\r\n\r\nokay",
        HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nokay",
        CHUNKED + b"2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n",
    ],
)
async def test_malformed_response_raises_error_and_closes_connection(data: bytes) -> None:
    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(data)
        await reader.read()

    async with serve(handle) as stub, open_client() as http:
        with pytest.raises(InvalidResponse):
            await fetch_body(http, stub.url)
        assert http.num_connections == 0


TEXT = b"The quick brown fox. " * 5000


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)[2:-4]),
        ("Identity", TEXT),
    ],
)
async def test_compressed_body_is_decoded(coding: str, data: bytes) -> None:
    head = b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (coding.encode(), len(data))
    async with serve(send_responses(HEAD + head + data)) as stub, open_client() as http:
        assert await fetch_body(http, stub.url) == TEXT


@pytest.mark.parametrize(
    "data",
    [gzip.compress(TEXT)[:-1], gzip.compress(TEXT) + b"x", b"x" + gzip.compress(TEXT)],
    ids=["cut", "more", "no"],
)
async def test_invalid_compressed_body_raises_error(data: bytes) -> None:
    head = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(data)
    async with serve(send_responses(HEAD + head + data)) as stub, open_client() as http:
        with pytest.raises(InvalidResponse):
            await fetch_body(http, stub.url)


def test_decoder_returns_large_output_in_bounded_chunks() -> None:
    decoder = build_decoder("gzip")
    assert decoder is not None
    decoder.feed(gzip.compress(bytes(20 * MAX_PIECE)))
    sizes: list[int] = []
    while piece := decoder.take():
        sizes.append(len(piece))
    decoder.finish()
    assert sum(sizes) == 20 * MAX_PIECE
    assert max(sizes) <= MAX_PIECE


async def test_read_all_of_decompression_bomb_stops_at_limit() -> None:
    bomb = gzip.compress(bytes(400 * MAX_PIECE))
    head = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    async with serve(send_responses(HEAD + head + bomb)) as stub, open_client() as http:
        response = await http.send("GET", stub.url, {})
        try:
            read = await response.read_all(4 * MAX_PIECE)
        finally:
            response.close()
    assert 4 * MAX_PIECE < len(read) <= 5 * MAX_PIECE
