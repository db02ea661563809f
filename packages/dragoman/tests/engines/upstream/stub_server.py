"""A server on loopback that answers each request as the test's handler does, including
truncated responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import httpx2

Handle = Callable[[httpx2.Request], httpx2.Response | None]
"""None closes the connection without a response."""


class Pieces(httpx2.AsyncByteStream):
    """A body in pieces; an error resets the connection, None waits until the client
    disconnects.
    """

    def __init__(self, *pieces: bytes | Exception | None) -> None:
        self.pieces = pieces
        self.closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise NotImplementedError


@asynccontextmanager
async def far_server(handle: Handle, port: int = 0) -> AsyncGenerator[str]:
    """Run the server and yield its address."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(reader, writer, handle))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handle
) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        try:
            while True:
                response = handle(await _read_request(reader))
                if response is None:
                    return
                await _write(reader, writer, response)
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> httpx2.Request:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = lines[0].split(" ")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:-2])]
    length = int(dict(headers).get("content-length", "0"))
    url = f"http://{dict(headers)['host']}{target}"
    return httpx2.Request(method, url, headers=headers, content=await reader.readexactly(length))


async def _write(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: httpx2.Response
) -> None:
    pieces = cast("object", response.stream)
    is_streamed = isinstance(pieces, Pieces)
    lines = [
        f"{name}: {value}\r\n"
        for name, value in response.headers.items()
        if name != "transfer-encoding"
    ]
    framing = "transfer-encoding: chunked\r\n" if is_streamed else ""
    if not is_streamed and "content-length" not in response.headers:
        framing = f"content-length: {len(response.content)}\r\n"
    writer.write(f"HTTP/1.1 {response.status_code} x\r\n{''.join(lines)}{framing}\r\n".encode())
    if not isinstance(pieces, Pieces):
        writer.write(response.content)
        return
    for piece in pieces.pieces:
        if piece is None:
            await reader.read()
            pieces.closed = True
            raise ConnectionError
        if isinstance(piece, Exception):
            writer.transport.abort()
            raise ConnectionError
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
