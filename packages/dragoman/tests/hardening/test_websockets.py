"""Incomplete WebSocket handshakes and messages."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest
from tests.http.wire import answers
from tests.serving.responses.test_websocket import run_server

from dragoman.engines.scripted import Say, ScriptEntry
from dragoman.http.limits import HttpLimits
from dragoman.launch.websocket import WebSocket
from dragoman.serving.serving_options import ServingOptions

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SAY = ScriptEntry((Say("Well."),), repeat=True)
FIELDS = {
    "host": "localhost",
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def head(method: str = "GET", version: str = "1.1", **fields: str | None) -> bytes:
    header_fields = {**FIELDS, **{name.replace("_", "-"): value for name, value in fields.items()}}
    lines = "".join(
        f"{name}: {value}\r\n" for name, value in header_fields.items() if value is not None
    )
    return f"{method} /v1/responses HTTP/{version}\r\n{lines}\r\n".encode()


def frame(data: bytes, opcode: int = 1, *, fin: bool = True, length: int | None = None) -> bytes:
    """Build a frame.

    length: the declared length; the mask is zeros.
    """
    return (
        bytes([opcode | 0x80 * fin, 0xFF])
        + struct.pack("!QI", len(data) if length is None else length, 0)
        + data
    )


async def send(where: str, data: bytes) -> Ends:
    reader, writer = await asyncio.open_connection(*where.split(":"))
    writer.write(data)
    return reader, writer


@asynccontextmanager
async def connect(where: str) -> AsyncGenerator[Ends]:
    reader, writer = await send(where, head())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    yield reader, writer
    writer.close()


async def close_code(reader: asyncio.StreamReader) -> int:
    """Return the code of the close frame, which may follow pings."""
    async with asyncio.timeout(60):
        data = await reader.read(-1)
    return struct.unpack("!H", data[data.index(b"\x88") + 2 :][:2])[0]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (head("POST"), 400),
        (head("POST", content_length="3") + b"abc", 400),
        (head(content_length="3") + b"abc", 400),
        (head(content_length="0"), 400),
        (head(transfer_encoding="chunked") + b"0\r\n\r\n", 400),
        (head(sec_websocket_version="8"), 426),
        (head(sec_websocket_version=None), 426),
        (head(sec_websocket_key=None), 400),
        (head(sec_websocket_key="short"), 400),
        (head(x_long="x" * 20_000), 400),
    ],
)
async def test_websocket_invalid_handshake_returns_error_and_closes(
    request_: bytes, status: int
) -> None:
    async with run_server(SAY) as where:
        reader, writer = await send(where, request_)
        async with asyncio.timeout(60):
            found = answers(await reader.read(-1))
        writer.close()
    assert [(each.status, each.headers["connection"]) for each in found] == [(status, "close")]
    assert status != 426 or found[0].headers["sec-websocket-version"] == "13"


async def test_websocket_upgrade_over_http_1_0_is_ignored() -> None:
    async with run_server(SAY) as where:
        reader, writer = await send(where, head(version="1.0"))
        async with asyncio.timeout(60):
            assert b" 405 " in await reader.readline()
        writer.close()


async def test_websocket_message_uses_memory_budget_only_in_transit() -> None:
    """100 sockets with half a message each took 1.4 GB that no memory budget counted."""
    body = {"model": "m", "input": "x" * 50_000}
    async with run_server(SAY, options=ServingOptions(max_inflight_body_bytes=100_000)) as where:  # noqa: SIM117
        async with (
            connect(where) as (reader, writer),
            httpx2.AsyncClient(base_url=f"http://{where}", timeout=60) as http,
        ):
            writer.write(frame(b"x" * 60_000, length=90_000))
            async with asyncio.timeout(60):
                while (await http.post("/v1/responses", json=body)).status_code != 503:
                    pass
            async with connect(where) as (other, second):
                second.write(frame(b"x" * 50_000, fin=False))
                assert await close_code(other) == 1013
            writer.close()
            async with asyncio.timeout(60):
                await reader.read(-1)
                while (await http.post("/v1/responses", json=body)).status_code == 503:
                    pass


@pytest.mark.parametrize(
    "part", [frame(b"x", length=100), frame(b"x", fin=False), b"\x81", frame(b"", 1, fin=False)]
)
async def test_websocket_incomplete_message_times_out(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pongs between its fragments do not extend the timeout."""
    monkeypatch.setattr(WebSocket, "limits", HttpLimits(body=0.1))
    async with run_server(SAY) as where, connect(where) as (reader, writer):
        await asyncio.sleep(0.2)
        writer.write(part)
        if part[0] == 1:
            writer.write(frame(b"", 0, fin=False) + frame(b"", 10))
        assert await close_code(reader) == 1008
