"""A server on loopback whose connections tests handle byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from dragoman_http import ClientTimeouts, HttpClient, ProxyRules

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class StubServer:
    """A running stub server.

    port: the server's port.
    connections: number of accepted connections.
    requests: the heads that `read_request` has read.
    """

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/path"

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        """Read a request, and return its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        lengths = [
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        return await reader.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b""


ConnectionHandler = Callable[
    [StubServer, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]
]
"""Handles one connection; when it returns, the connection is closed."""


@asynccontextmanager
async def serve(
    handle: ConnectionHandler,
    context: ssl.SSLContext | None = None,
) -> AsyncGenerator[StubServer]:
    """Run a server that passes each connection to `handle`, and yield it."""
    stub = StubServer()
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                await handle(stub, reader, writer)
            finally:
                writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stub.connections += 1
        task = asyncio.create_task(run(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_client(
    *,
    proxies: dict[str, str] | None = None,
    read: float = 600.0,
    context: ssl.SSLContext | None = None,
    uds: str | None = None,
) -> AsyncGenerator[HttpClient]:
    """Yield a client, and close it.

    proxies: proxies by scheme, as in the environment.
    read: the read timeout in seconds.
    """
    http = HttpClient(
        ClientTimeouts(read=read), proxies=ProxyRules(proxies or {}), tls_context=context, uds=uds
    )
    try:
        yield http
    finally:
        await http.close()


def send_responses(*responses: bytes) -> ConnectionHandler:
    """Respond to the requests of each connection in this order, then close it."""

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for response in responses:
            await stub.read_request(reader)
            writer.write(response)
            await writer.drain()

    return handle


def repeat_response(response: bytes) -> ConnectionHandler:
    """Respond to every request with this response."""

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await stub.read_request(reader)
            writer.write(response)
            await writer.drain()

    return handle


async def fetch_body(http: HttpClient, url: str) -> bytes:
    """Send a GET request, and return the body of the response."""
    response = await http.send("GET", url, {})
    try:
        return await response.read_all(1 << 20)
    finally:
        response.close()
