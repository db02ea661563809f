"""An ASGI application behind this server's connections on a real port, and clients that
write arbitrary bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from dragoman.http.limits import HttpLimits
from dragoman.http.server_connection import Http11ProtocolFactory

HEAD = b"HTTP/1.1\r\nhost: h\r\n"
GET = b"GET / " + HEAD + b"\r\n"


class Wire(NamedTuple):
    """A running server.

    state: uvicorn's server state.
    """

    port: int
    state: ServerState

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect and send bytes, which are there when the server accepts the connection:
        none of its timeouts can come between.
        """
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setblocking(False)
        n_sent = sock.send(data) if data else 0
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(data[n_sent:])
        return reader, writer

    async def ask(self, *packets: bytes) -> bytes:
        """Send bytes and return the response bytes until the server closes."""
        reader, writer = await self.connect(*packets[:1])
        for packet in packets[1:]:
            writer.write(packet)
            await writer.drain()
        async with asyncio.timeout(60):
            output = await reader.read(-1)
        writer.close()
        return output

    async def wait_until_closed(self) -> None:
        """Wait until there are no connections and tasks. The test's own timeout limits
        the wait.
        """
        while self.state.connections or self.state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    limits: HttpLimits | None = None,
    *,
    idle: float = 5,
    theirs: bool = False,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncGenerator[Wire]:
    """Run a server.

    idle: keepalive timeout in seconds.
    theirs: use uvicorn's own protocol.
    options: options of `uvicorn.Config`.
    """
    make: Any = HttpToolsProtocol if theirs else Http11ProtocolFactory(limits, tls)
    config = uvicorn.Config(
        app, http=make, log_config=None, log_level="critical", lifespan="off", proxy_headers=False,
        access_log=False,
        timeout_keep_alive=cast(int, idle), **options,
    )  # fmt: skip
    config.load()
    state = ServerState()

    def connection() -> asyncio.Protocol:
        return make(config=config, server_state=state, app_state={})

    listening = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    wire = Wire(listening.sockets[0].getsockname()[1], state)
    try:
        yield wire
    finally:
        listening.close()
        for one in list(state.connections):
            one.shutdown()
        for task in list(state.tasks):
            task.cancel()
        await wire.wait_until_closed()


async def body_of(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        assert message["type"] == "http.request", "the client disconnected"
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def piece(body: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Echo the request as JSON with a content length."""
    body = await body_of(receive)
    headers = [
        [name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]
    ]
    received = [
        scope["method"],
        scope["raw_path"].decode(),
        scope["query_string"].decode(),
        headers,
        body.decode("latin-1"),
    ]
    payload = json.dumps(received).encode()
    await send(start(200, (b"content-length", str(len(payload)).encode())))
    await send(piece(payload))


async def stream(_: Scope, receive: Receive, send: Send) -> None:
    """Send two pieces without a content length."""
    await body_of(receive)
    await send(start(200, (b"content-type", b"text/event-stream")))
    await send(piece(b"data: 1\n\n", more=True))
    await send(piece(b"data: 2\n\n"))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def answers(data: bytes, *methods: str) -> list[Answer]:
    """Parse consecutive responses.

    methods: methods of the requests; the default is GET.
    """
    found: list[Answer] = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, f"no end of headers in {head!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        assert len(headers) == len(lines), f"a header twice in {head!r}"
        status = int(first.split(" ")[1])
        method = methods[len(found)] if len(found) < len(methods) else "GET"
        body = b""
        if status >= 200 and status not in (204, 304) and method != "HEAD":
            body, data = _body(headers, data)
        found.append(Answer(status, headers, body))
    return found


def _body(headers: dict[str, str], data: bytes) -> tuple[bytes, bytes]:
    if "content-length" in headers:
        length = int(headers["content-length"])
        assert len(data) >= length, "the body ends before its length"
        return data[:length], data[length:]
    if headers.get("transfer-encoding") != "chunked":
        return data, b""
    pieces: list[bytes] = []
    while True:
        size, end, data = data.partition(b"\r\n")
        assert end, "the chunks have no end"
        length = int(size, 16)
        pieces.append(data[:length])
        assert data[length : length + 2] == b"\r\n", "a chunk has no end"
        data = data[length + 2 :]
        if not length:
            return b"".join(pieces), data
