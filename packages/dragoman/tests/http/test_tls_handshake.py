"""TLS handshakes count as connections, and end in time."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send
from tests.http.test_server import write_certificate
from tests.http.wire import GET, HEAD, Wire, answers, echo, serving, stream

from dragoman.http.limits import HttpLimits
from dragoman.http.tls_handshake import TlsHandshake

SOON = 0.05
CLOSE = b"GET /a " + HEAD + b"connection: close\r\n\r\n"


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_certificate(tmp_path))
    return context


def trust_all() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def connect(wire: Wire) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", wire.port, ssl=trust_all())


async def read_until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(60):
            return await reader.read(-1)
    except ConnectionResetError:
        return b""


async def wait_for_connections(wire: Wire, count: int) -> None:
    async with asyncio.timeout(60):
        while len(wire.state.connections) != count:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)


async def test_tls_requests_are_answered(tls: ssl.SSLContext) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["scheme"])
        await echo(scope, receive, send)

    async with serving(app, tls=tls) as wire:
        reader, writer = await connect(wire)
        body = b"x" * 1_000_000
        writer.write(b"POST / " + HEAD + b"content-length: 1000000\r\n\r\n" + body + CLOSE)
        output = await read_until_closed(reader)
        writer.close()
        assert [each.status for each in answers(output)] == [200, 200]
        await wait_for_connections(wire, 0)
    assert seen == ["https", "https"]


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02", GET], ids=["none", "half", "plain"])
async def test_incomplete_handshake_ends_with_head_timeout(
    tls: ssl.SSLContext, sent: bytes
) -> None:
    async with serving(stream, HttpLimits(head_timeout=SOON), tls=tls) as wire:
        reader, writer = await wire.connect(sent)
        await wait_for_connections(wire, 1)
        await read_until_closed(reader)
        await wait_for_connections(wire, 0)
        writer.close()


async def test_handshakes_count_as_connections(tls: ssl.SSLContext) -> None:
    async with serving(stream, HttpLimits(connections=3), tls=tls) as wire:
        held = [await wire.connect() for _ in range(3)]
        await wait_for_connections(wire, 3)
        for _ in range(5):
            reader, writer = await wire.connect()
            assert await read_until_closed(reader) == b""
            writer.close()
        held.pop()[1].close()
        await wait_for_connections(wire, 2)
        reader, writer = await connect(wire)
        writer.write(CLOSE)
        assert [each.status for each in answers(await read_until_closed(reader))] == [200]
        for each in (writer, *(writer for _, writer in held)):
            each.close()


async def test_handshakes_are_limited_per_address(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_loopback(_: str) -> bool:
        return False

    monkeypatch.setattr("dragoman.http.server_context.is_loopback", is_loopback)
    async with serving(stream, HttpLimits(per_address=1), tls=tls) as wire:
        _, held = await wire.connect()
        await wait_for_connections(wire, 1)
        reader, writer = await wire.connect()
        assert await read_until_closed(reader) == b""
        writer.close()
        held.close()
        await wait_for_connections(wire, 0)
        for _ in range(3):
            reader, writer = await connect(wire)
            writer.write(CLOSE)
            assert [each.status for each in answers(await read_until_closed(reader))] == [200]
            writer.close()
            await wait_for_connections(wire, 0)


async def test_disconnect_during_handshake_ends_connection(tls: ssl.SSLContext) -> None:
    async with serving(stream, tls=tls) as wire:
        _, writer = await wire.connect()
        writer.write(b"\x16\x03\x01\x02")
        await wait_for_connections(wire, 1)
        writer.close()
        await wait_for_connections(wire, 0)


async def test_shutdown_ends_handshakes(tls: ssl.SSLContext) -> None:
    async with serving(stream, tls=tls) as wire:
        reader, writer = await wire.connect()
        await wait_for_connections(wire, 1)
        [handshake] = wire.state.connections
        assert isinstance(handshake, TlsHandshake)
        handshake.shutdown()
        assert await read_until_closed(reader) == b""
        await wait_for_connections(wire, 0)
        writer.close()
