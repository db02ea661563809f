"""A slow client cannot occupy a connection: headers, bodies, idle connections, and
unread responses.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from starlette.types import Receive, Scope, Send
from tests.http.wire import GET, HEAD, answers, body_of, echo, piece, serving, start, stream

from dragoman.http.limits import HttpLimits
from dragoman.http.server_connection import HttpConnection
from tests.virtual_time import SkippingLoop, run_skipping_time

SOON = 0.02
POST = b"POST / " + HEAD + b"content-length: 10\r\n\r\n12345"


async def test_silent_connection_is_closed_without_response() -> None:
    async with serving(echo, HttpLimits(head_timeout=SOON)) as wire:
        assert await wire.ask() == b""


@pytest.mark.parametrize(
    "half", [b"G", b"GET / HTTP/1.1\r\nhost: h", b"GET / HTTP/1.1\r\nhost: h\r\n"]
)
async def test_incomplete_headers_return_408(half: bytes) -> None:
    async with serving(echo, HttpLimits(head_timeout=SOON, linger_timeout=SOON)) as wire:
        assert [
            (each.status, each.headers["connection"]) for each in answers(await wire.ask(half))
        ] == [(408, "close")]


async def test_headers_sent_bytewise_do_not_extend_timeout() -> None:
    async with serving(echo, HttpLimits(head_timeout=0.1)) as wire:
        reader, writer = await wire.connect(GET[:1])

        async def send_slowly() -> None:
            for byte in GET[1:-1] * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)  # it is what this is about

        dripping = asyncio.create_task(send_slowly())
        output = await reader.read(-1)
        dripping.cancel()
        writer.close()
    assert [each.status for each in answers(output)] == [408]


async def test_second_request_incomplete_headers_return_408() -> None:
    async with serving(stream, HttpLimits(head_timeout=SOON)) as wire:
        assert [each.status for each in answers(await wire.ask(GET + b"GET / HT"))] == [200, 408]


async def test_idle_connection_is_closed_without_response() -> None:
    async with serving(stream, idle=SOON) as wire:
        assert [each.status for each in answers(await wire.ask(GET))] == [200]


async def test_missing_body_returns_408_and_notifies_application() -> None:
    messages: list[str] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        messages.extend([(await receive())["type"], (await receive())["type"]])

    async with serving(app, HttpLimits(body=SOON)) as wire:
        output = await wire.ask(POST)
        await wire.wait_until_closed()
    assert [each.status for each in answers(output)] == [408]
    assert messages == ["http.request", "http.disconnect"]


async def test_started_response_is_cut_off_when_body_stalls() -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(piece(b"begun", more=True))
        await body_of(receive)

    async with serving(app, HttpLimits(body=SOON)) as wire:
        output = await wire.ask(POST)
    assert output.endswith(b"begun\r\n")


def test_body_timeout_pauses_while_application_does_not_read() -> None:
    async def send_body(loop: SkippingLoop) -> bytes:
        reads = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await reads.wait()
            await echo(scope, receive, send)

        async with serving(app, HttpLimits(body=600, max_buffered_bytes=10)) as wire:
            head = b"POST / " + HEAD + b"connection: close\r\ncontent-length: 1000000\r\n\r\n"
            reader, writer = await wire.connect(head + b"x")
            while not wire.state.tasks:  # noqa: ASYNC110 - a server has no event for it
                await asyncio.sleep(0)
            writer.write(b"x" * 999_999)
            [connection] = cast("set[HttpConnection]", wire.state.connections)
            while connection.transport.is_reading():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            loop.skipped += 1000
            # The timers that are due run in between.
            for _ in range(5):
                await asyncio.sleep(0)
            reads.set()
            output = await reader.read(-1)
            writer.close()
            return output

    assert [each.status for each in answers(run_skipping_time(send_body))] == [200]


async def test_unread_body_is_discarded_only_up_to_limit() -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start(401, (b"content-length", b"0")))
        await send(piece())

    async with serving(app, HttpLimits(linger_timeout=SOON)) as wire:
        assert [each.status for each in answers(await wire.ask(POST))] == [401]


async def test_client_not_reading_response_is_disconnected() -> None:
    gone = asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(start())
        await send(piece(b"x" * 20_000_000, more=True))
        await receive()
        gone.set()

    async with serving(app, HttpLimits(stall_timeout=0.1)) as wire:
        reader, writer = await wire.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        await gone.wait()
        await wire.wait_until_closed()
        writer.close()


def test_slow_reading_client_receives_full_response() -> None:
    size = 20_000_000

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, (b"content-length", str(size).encode()), (b"connection", b"close")))
        await send(piece(b"x" * size))

    async def read_slowly(loop: SkippingLoop) -> int:
        async with serving(app, HttpLimits(stall_timeout=600)) as wire:
            reader, writer = await wire.connect(GET)
            await reader.readuntil(b"\r\n\r\n")
            [connection] = cast("set[HttpConnection]", wire.state.connections)
            unsent = connection.transport.get_write_buffer_size()
            taken = 0
            while data := await reader.read(1_000_000):
                taken += len(data)
                left = connection.transport.get_write_buffer_size()
                if left < unsent:
                    # The system sends more once the client has read a part of its buffer.
                    unsent = left
                    loop.skipped += 400
            writer.close()
            return taken

    assert run_skipping_time(read_slowly) == size
