"""Connections: their number, slow bodies, and disconnects."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.http.wire import GET, HEAD, answers, echo, serving, stream

from dragoman.http.limits import HttpLimits
from dragoman.http.server_context import ServerContext
from dragoman.http.sockets import has_disconnected
from tests.virtual_time import SkippingLoop, run_skipping_time

SOON = 0.05
LAST = b"GET / HTTP/1.0\r\n\r\n"
LONG = b"POST / " + HEAD + b"content-length: 1000000\r\n\r\n"


@pytest.mark.parametrize("kind", ["counted", "chunks", "extension"])
async def test_body_below_minimum_rate_returns_408(kind: str) -> None:
    """The bytes arrive within the idle timeout of a body: without a minimum rate the
    body could take forever.
    """
    drop = {"counted": b"x", "chunks": b"1\r\nx\r\n", "extension": b"x"}[kind]
    opening = (
        LONG if kind == "counted" else b"POST / " + HEAD + b"transfer-encoding: chunked\r\n\r\n"
    )
    async with serving(echo, HttpLimits(body=4 * SOON, linger_timeout=SOON)) as wire:
        reader, writer = await wire.connect()
        writer.write(opening + (b"1;" if kind == "extension" else b""))

        async def send_slowly() -> None:
            while True:
                writer.write(drop)
                await asyncio.sleep(SOON / 5)

        dripping = asyncio.create_task(send_slowly())
        async with asyncio.timeout(60):
            output = await reader.read(-1)
        dripping.cancel()
        writer.close()
    assert [each.status for each in answers(output)] == [408]


def test_slow_body_above_minimum_rate_is_accepted() -> None:
    async def send_slowly(loop: SkippingLoop) -> bytes:
        received = asyncio.Semaphore(0)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            async def count() -> Message:
                message = await receive()
                received.release()
                return message

            try:
                await echo(scope, count, send)
            finally:
                for _ in range(8):
                    received.release()

        async with serving(app, HttpLimits(body=600, body_rate=1)) as wire:
            head = b"POST / " + HEAD + b"connection: close\r\ncontent-length: 8000\r\n\r\n"
            reader, writer = await wire.connect(head)
            for _ in range(8):
                writer.write(b"x" * 1000)
                await received.acquire()
                loop.skipped += 500
            async with asyncio.timeout(60):
                output = await reader.read(-1)
            writer.close()
            return output

    assert [each.status for each in answers(run_skipping_time(send_slowly))] == [200]


async def test_body_over_total_timeout_returns_408() -> None:
    async with serving(
        echo, HttpLimits(body=SOON, body_total=2 * SOON, linger_timeout=SOON)
    ) as wire:
        reader, writer = await wire.connect()
        writer.write(LONG)

        async def send() -> None:
            while True:
                writer.write(b"x" * 1000)
                await asyncio.sleep(SOON / 5)

        sending = asyncio.create_task(send())
        async with asyncio.timeout(60):
            assert b" 408 " in await reader.readline()
        sending.cancel()
        writer.close()


async def test_connections_over_limit_return_503() -> None:
    async with serving(stream, HttpLimits(connections=8, linger_timeout=SOON)) as wire:
        held = [await wire.connect() for _ in range(8)]
        async with asyncio.timeout(60):
            [rejected] = answers(await wire.ask())
            assert (
                rejected.status,
                rejected.headers["retry-after"],
                rejected.headers["connection"],
            ) == (
                503,
                "1",
                "close",
            )
            held.pop()[1].close()
            while len(wire.state.connections) > 7:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert [each.status for each in answers(await wire.ask(GET + LAST))] == [200, 200]
        for _, each in held:
            each.close()


async def is_cut(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(-1) == b""
    except ConnectionResetError:
        return True


async def test_connections_far_above_limit_are_closed_without_response() -> None:
    async with serving(stream, HttpLimits(connections=8)) as wire:
        held = [await wire.connect() for _ in range(30)]
        async with asyncio.timeout(60):
            assert sum([await is_cut(reader) for reader, _ in held[9:]]) == 21
        for _, each in held:
            each.close()


async def test_connections_per_address_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is exempt: such connections are a proxy's or the user's own."""

    def is_loopback(_: str) -> bool:
        return False

    monkeypatch.setattr("dragoman.http.server_context.is_loopback", is_loopback)
    async with serving(stream, HttpLimits(per_address=2, linger_timeout=SOON)) as wire:
        held = [await wire.connect() for _ in range(2)]
        async with asyncio.timeout(60):
            assert [each.status for each in answers(await wire.ask())] == [503]
        for _, each in held:
            each.close()
        async with asyncio.timeout(60):
            while wire.state.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert [each.status for each in answers(await wire.ask(GET + LAST))] == [200, 200]


async def test_connections_rejected_at_address_leave_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rejected connections linger, but fill neither the server nor their address."""
    monkeypatch.setattr("dragoman.http.server_context.is_loopback", "::1".__eq__)
    # Lingers for as long as the test runs.
    limits = HttpLimits(connections=16, per_address=8, linger_timeout=600, head_timeout=600)
    async with serving(stream, limits) as wire:

        async def connect(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", wire.port, local_addr=(host, 0))

        async def get(host: str) -> bytes:
            reader, writer = await connect(host)
            writer.write(GET)
            async with asyncio.timeout(60):
                line = await reader.readline()
            writer.close()
            return line

        held = [await connect("127.0.0.2") for _ in range(30)]
        async with asyncio.timeout(60):
            while len(wire.state.connections) > 8 + 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert b" 200 " in await get("127.0.0.3")
        held[0][1].close()
        async with asyncio.timeout(60):
            while len(wire.state.connections) > 7 + 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert b" 200 " in await get("127.0.0.2")
        for _, each in held:
            each.close()


def test_connection_count_per_address_is_removed_at_zero() -> None:
    shared = ServerContext.__new__(ServerContext)
    shared.limits = HttpLimits()
    shared.connections = set()
    shared._by_address = {}  # pyright: ignore[reportPrivateUsage]
    shared._rejected = set()  # pyright: ignore[reportPrivateUsage]
    connection = asyncio.Protocol()
    for _ in range(3):
        shared.admit(connection, "192.0.2.1")
    for _ in range(3):
        shared.release(connection, "192.0.2.1")
    assert shared._by_address == {}  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("size", [1, 100_000, 5_000_000])
async def test_disconnect_is_detected_behind_buffered_input(size: int) -> None:
    gone = asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(app, HttpLimits(peek=SOON)) as wire:
        _, writer = await wire.connect()
        writer.write(GET + b"x" * size)
        writer.close()
        async with asyncio.timeout(60):
            await gone.wait()


async def test_disconnect_is_detected_after_several_polls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = asyncio.Event()
    looked = asyncio.Semaphore(0)

    def look(transport: asyncio.BaseTransport) -> bool:
        looked.release()
        return has_disconnected(transport)

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    monkeypatch.setattr("dragoman.http.server_connection.has_disconnected", look)
    async with serving(app, HttpLimits(peek=SOON)) as wire:
        _, writer = await wire.connect()
        writer.write(GET + b"x" * 100_000)
        async with asyncio.timeout(60):
            for _ in range(3):
                await looked.acquire()
            assert not gone.is_set()
            writer.close()
            await gone.wait()


async def test_disconnect_is_detected_while_body_is_unread() -> None:
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"]["dragoman.disconnect"](gone.set)
        await gone.wait()

    async with serving(app, HttpLimits(peek=SOON)) as wire:
        _, writer = await wire.connect()
        writer.write(LONG + b"x" * 100_000)
        writer.close()
        async with asyncio.timeout(60):
            await gone.wait()


@pytest.mark.parametrize(
    ("line", "host", "status"),
    [
        (b"GET http://evil.example/ HTTP/1.1", b"localhost", 400),
        (b"GET http://localhost:1/ HTTP/1.1", b"localhost:2", 400),
        (b"GET http://user@localhost/ HTTP/1.1", b"localhost", 400),
        (b"GET http://LOCALHOST:80/ HTTP/1.1", b"localhost", 200),
        (b"GET https://localhost/ HTTP/1.1", b"localhost:443", 200),
        (b"GET / RTSP/1.0", b"localhost", 400),
        (b"GET / ICE/1.0", b"localhost", 400),
        (b"GET  / HTTP/1.1", b"localhost", 400),
        (b"GET /  HTTP/1.1", b"localhost", 400),
    ],
)
async def test_request_line_forms_return_expected_status(
    line: bytes, host: bytes, status: int
) -> None:
    async with serving(stream, HttpLimits(linger_timeout=SOON)) as wire:
        output = await wire.ask(line + b"\r\nhost: " + host + b"\r\nconnection: close\r\n\r\n")
    assert [each.status for each in answers(output)] == [status]
