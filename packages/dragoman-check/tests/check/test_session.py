"""Requests of a session: headers, retries, timeouts, early disconnects, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.http_client.stub_server import (
    CHUNKED,
    OK,
    StubServer,
    repeat_response,
    send_responses,
    serve,
)

from dragoman_check.check_exceptions import LimitReached
from dragoman_check.client import CheckTarget, Client
from dragoman_check.rules.json_values import JsonObject, Violation
from dragoman_check.session import Session
from tests.virtual_time import SkippingLoop, run_skipping_time


@asynccontextmanager
async def open_session(server: StubServer, **options: Any) -> AsyncGenerator[Session]:
    client = Client(CheckTarget(url=f"http://127.0.0.1:{server.port}", **options))
    try:
        yield Session(client, frozenset())
    finally:
        await client.close()


async def test_send_adds_key_and_version_headers_of_the_api() -> None:
    async with serve(repeat_response(OK)) as server:
        async with open_session(server, api_key="sk-1") as session:
            await session.get("/v1/models")
            await session.post("/v1/messages?beta=true", {})
        chat, messages = (request.lower() for request in server.requests)
        assert b"authorization: bearer sk-1\r\n" in chat
        assert b"x-api-key" not in chat
        assert b"x-api-key: sk-1\r\n" in messages
        assert b"anthropic-version: 2023-06-01\r\n" in messages
        assert messages.startswith(b"post /v1/messages?beta=true http/1.1\r\n")


async def test_send_records_response_as_exchange() -> None:
    async with serve(repeat_response(OK)) as server, open_session(server) as session:
        exchange = await session.post("/v1/chat/completions", {"a": 1})
    assert session.exchanges == [exchange]
    assert (exchange.request, exchange.status, exchange.body) == (b'{"a": 1}', 200, b"ok")
    assert exchange.header("content-length") == "2"


async def test_send_on_lost_connection_is_retried_once() -> None:
    async def close_first(
        server: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read_request(reader)
        if server.connections > 1:
            writer.write(OK)

    async with serve(close_first) as server, open_session(server) as session:
        assert (await session.post("/", {})).status == 200
    async with serve(send_responses()) as server, open_session(server) as session:
        with pytest.raises(Violation, match=r"POST /: the server closed the connection"):
            await session.post("/", {})
        assert server.connections == 2


def test_send_without_response_in_time_raises_violation() -> None:
    async def wait_in_vain(loop: SkippingLoop) -> None:
        async def skip_time(
            server: StubServer, reader: asyncio.StreamReader, _: asyncio.StreamWriter
        ) -> None:
            await server.read_request(reader)
            loop.skipped += 1000
            await reader.read()

        async with serve(skip_time) as server, open_session(server, timeout=600) as session:
            with pytest.raises(Violation, match=r"GET /: no response within 600 s"):
                await session.get("/")

    run_skipping_time(wait_in_vain)


async def test_stream_left_early_disconnects() -> None:
    disconnected = asyncio.Event()

    async def stream(
        server: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read_request(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        assert await reader.read() == b""
        disconnected.set()

    async with serve(stream) as server, open_session(server) as session:
        async with session.stream("/", {}) as response:
            assert await response.read() == b"a"
        await disconnected.wait()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [], "max_tokens": 5}, 5),
        ({"messages": [], "max_tokens": 5, "n": 3}, 15),
        ({"prompt": "a", "options": {"num_predict": 7}}, 7),
        ({"input": "a"}, 256),
        ({"input": "a", "encoding_format": "float"}, 0),
        ({"tokens": [1]}, 0),
    ],
)
async def test_spend_counts_allowed_output_tokens(body: JsonObject, tokens: int) -> None:
    client = Client(CheckTarget(url="http://localhost", max_tokens=300))
    client.spend(body)
    assert (client.requests, client.tokens) == (1, tokens)
    with pytest.raises(LimitReached, match="300 output tokens"):
        client.spend({"messages": [], "max_tokens": 301})
