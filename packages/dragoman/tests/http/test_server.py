"""The protocol under uvicorn's server: uvicorn's own features, and the state that the
protocol reports.
"""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.http.wire import GET, HEAD, answers, echo, piece, start, stream
from websockets.asyncio.client import connect

from dragoman.http.server_connection import Http11ProtocolFactory, HttpConnection

CLOSE = b"GET /a " + HEAD + b"connection: close\r\n\r\n"


@asynccontextmanager
async def run_server(
    app: ASGIApp, listener: socket.socket | None, **options: Any
) -> AsyncGenerator[uvicorn.Server]:
    make: Any = Http11ProtocolFactory()
    settings = {
        "log_config": None,
        "log_level": "critical",
        "proxy_headers": False,
        "access_log": False,
    }
    server = uvicorn.Server(uvicorn.Config(app, http=make, **settings, **options))
    running = asyncio.create_task(server.serve(None if listener is None else [listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0)
    yield server
    server.should_exit = True
    await running


def listening(family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    return listener


async def fetch(app: ASGIApp, listener: socket.socket, **options: Any) -> bytes:
    async with run_server(app, listener, lifespan="off", **options):
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        writer.write(CLOSE)
        output = await reader.read(-1)
        writer.close()
    return output


async def test_date_header_follows_uvicorn_setting() -> None:
    [dated] = answers(await fetch(stream, listening()))
    age = datetime.datetime.now(datetime.UTC) - parsedate_to_datetime(dated.headers["date"])
    assert abs(age.total_seconds()) < 60
    assert dated.headers["server"] == "uvicorn"
    [plain] = answers(await fetch(stream, listening(), date_header=False, server_header=False))
    assert not {"date", "server"} & plain.headers.keys()


async def test_lifespan_state_is_passed_to_every_request() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope["state"]["model"] = "m"
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        seen.append(dict(scope["state"]))
        scope["state"]["model"] = "another"
        await stream(scope, receive, send)

    with listening() as listener:
        async with run_server(app, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(GET + CLOSE)
            await reader.read(-1)
            writer.close()
    assert seen == [{"model": "m"}, {"model": "m"}]


async def test_server_over_ipv6_is_reachable() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await stream(scope, receive, send)

    try:
        listener = listening(socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = listener.getsockname()[1]
    assert answers(await fetch(app, listener))[0].status == 200
    assert (seen[0]["server"], seen[0]["client"][0], len(seen[0]["client"])) == (
        ("::1", port),
        "::1",
        2,
    )


async def test_server_over_unix_socket_is_reachable(tmp_path: Path) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await stream(scope, receive, send)

    path = str(tmp_path / "s")
    async with run_server(app, None, uds=path, lifespan="off"):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(CLOSE)
        assert answers(await reader.read(-1))[0].status == 200
        writer.close()
    assert (seen[0]["server"], seen[0]["client"]) == ((path, None), None)


def write_certificate(folder: Path) -> Path:
    """Write a key and a certificate for this machine in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    own = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "both.pem"
    path.write_bytes(own + certificate.public_bytes(serialization.Encoding.PEM))
    return path


async def test_server_over_tls_is_reachable(tmp_path: Path) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["scheme"])
        await echo(scope, receive, send)

    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    with listening() as listener:
        async with run_server(
            app, listener, lifespan="off", ssl_certfile=str(write_certificate(tmp_path))
        ):
            reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
            writer.write(
                b"POST / " + HEAD + b"content-length: 1000000\r\n\r\n" + b"x" * 1_000_000 + CLOSE
            )
            output = await reader.read(-1)
            writer.close()
            assert [each.status for each in answers(output)] == [200, 200]
            reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
            writer.write(b"nonsense\r\n\r\n")
            assert [each.status for each in answers(await reader.read(-1))] == [400]
            writer.close()
    assert seen == ["https", "https"]


async def test_closing_tls_is_idempotent(tmp_path: Path) -> None:
    """A client's close_notify may arrive while the connection is already closing."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    with listening() as listener:
        async with run_server(
            echo, listener, lifespan="off", ssl_certfile=str(write_certificate(tmp_path))
        ) as server:
            reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
            # The client's handshake completes before the server's.
            while not server.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0)
            (connection,) = server.server_state.connections
            assert isinstance(connection, HttpConnection)
            connection.shutdown()
            connection.eof_received()
            connection.shutdown()
            assert await reader.read(-1) == b""
            writer.close()


async def test_websocket_upgrade_passes_on_buffered_data() -> None:
    data: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await stream(scope, receive, send)
            return
        data.append((scope["path"], scope["query_string"], dict(scope["headers"])[b"host"]))
        await receive()
        await send({"type": "websocket.accept"})
        data.append((await receive())["text"])
        await send({"type": "websocket.send", "text": "hello"})
        await receive()

    with listening() as listener:
        async with run_server(app, listener, lifespan="off") as server:
            where = f"localhost:{listener.getsockname()[1]}"
            async with connect(
                f"ws://{where}/socket?x=y", sock=socket.create_connection(listener.getsockname())
            ) as ws:
                await ws.send("hi")
                assert await ws.recv() == "hello"
                assert len(server.server_state.connections) == 1
            # The first frame arrives with the request, with a mask of zeros: "hi".
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            upgrade = (
                b"connection: keep-alive, Upgrade\r\nupgrade: "
                b"WebSocket\r\nsec-websocket-version: 13\r\n"
            )
            key = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            writer.write(GET + b"GET /socket " + HEAD + upgrade + key + b"\x81\x82\0\0\0\0hi")
            output = await reader.readuntil(b"hello")
            writer.close()
    assert b"HTTP/1.1 101 " in output
    assert data == [("/socket", b"x=y", where.encode()), "hi", ("/socket", b"", b"h"), "hi"]


async def test_shutdown_finishes_running_responses_and_closes() -> None:
    begun = asyncio.Event()
    go = asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(piece(b"begun", more=True))
        begun.set()
        await go.wait()
        await send(piece(b" and done"))

    with listening() as listener:
        async with run_server(app, listener, lifespan="off") as server:
            idle = await asyncio.open_connection(*listener.getsockname())
            busy = await asyncio.open_connection(*listener.getsockname())
            busy[1].write(GET * 2)
            await begun.wait()
            server.should_exit = True
            assert await idle[0].read(-1) == b""
            go.set()
            output = await busy[0].read(-1)
            for _, writer in (idle, busy):
                writer.close()
    assert [answer.body for answer in answers(output)] == [b"begun and done"]
