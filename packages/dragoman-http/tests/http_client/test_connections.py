"""Connections of the client: reuse, backpressure, aborts and timeouts, on real sockets."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.launch.certificates import write_certificate

from dragoman_http import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    HttpClient,
    HttpClientError,
    InvalidResponse,
    ResponseTimeout,
)

from .stub_server import CHUNKED, OK, StubServer, answering, client, get, repeating, serve


async def test_connection_is_reused_after_full_response() -> None:
    async with serve(repeating(OK)) as far, client() as http:
        assert [await get(http, far.url) for _ in range(3)] == [b"ok"] * 3
        assert (far.connections, http.num_connections) == (1, 1)


async def test_concurrent_requests_use_separate_connections() -> None:
    async with serve(repeating(OK)) as far, client() as http:
        assert await asyncio.gather(*(get(http, far.url) for _ in range(5))) == [b"ok"] * 5
        assert far.connections == 5


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nconnection: close", b"HTTP/1.0 200 OK"])
async def test_connection_closed_by_server_is_not_reused(head: bytes) -> None:
    ending = head + b"\r\ncontent-length: 2\r\n\r\nok"
    async with serve(repeating(ending)) as far, client() as http:
        assert [await get(http, far.url) for _ in range(2)] == [b"ok"] * 2
        assert far.connections == 2


async def test_request_bytes_match_expected_format() -> None:
    async with serve(repeating(OK)) as far, client() as http:
        response = await http.send(
            "POST", f"http://localhost:{far.port}/a%20b/é?c=d", {"x-one": "1"}, b"body"
        )
        response.close(drain=True)
        host = b"localhost:%d" % far.port
        assert far.requests == [
            b"POST /a%20b/%C3%A9?c=d HTTP/1.1\r\nhost: "
            + host
            + b"\r\naccept-encoding: identity\r\nx-one: 1\r\n"
            b"content-length: 4\r\n\r\n"
        ]


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "\x00"])
async def test_header_injection_raises_value_error(value: str) -> None:
    async with client() as http:
        with pytest.raises(ValueError, match="x-key"):
            await http.send("GET", "http://127.0.0.1:1/", {"x-key": value})


async def test_large_request_body_is_sent_completely() -> None:
    received: list[bytes] = []

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        received.append(await far.read_request(reader))
        writer.write(OK)

    body = bytes(range(256)) * 16384
    async with serve(handle) as far, client() as http:
        response = await http.send("POST", far.url, {}, body)
        assert await response.read_all(100) == b"ok"
    assert received == [body]


async def test_slow_consumer_applies_backpressure_to_server() -> None:
    """Until the consumer reads, the server can write only what the sockets and the
    client buffer.
    """
    written = 0

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal written
        await far.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 << 20))
        for _ in range(64):
            writer.write(bytes(1 << 20))
            await writer.drain()
            written += 1 << 20

    async with serve(handle) as far, client() as http:
        response = await http.send("GET", far.url, {})
        before = -1
        while before != written:
            before = written
            for _ in range(2000):
                await asyncio.sleep(0)
        assert written < 32 << 20
        total = 0
        largest = 0
        while (piece := await response.read()) is not None:
            total = total + len(piece)
            largest = max(largest, len(piece))
        assert total == 64 << 20
        assert largest <= 1 << 20


async def test_direct_receiver_gets_chunks_while_consumer_waits() -> None:
    received: list[bytes] = []
    n_direct = 0

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        writer.write(CHUNKED)
        for number in range(10):
            writer.write(b"2\r\n%02d\r\n" % number)
            while len(received) <= number:  # noqa: ASYNC110 - the limit of the test ends it
                await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    def receive(piece: bytes) -> bool:
        nonlocal n_direct
        if n_direct == 6:
            return False
        n_direct += 1
        received.append(piece)
        return True

    async with serve(handle) as far, client() as http:
        response = await http.send("GET", far.url, {})
        response.receive_directly(receive)
        while (piece := await response.read()) is not None:
            received.append(piece)
    assert received == [b"%02d" % number for number in range(10)]
    assert n_direct == 6


async def test_aborted_response_closes_connection() -> None:
    closed = asyncio.Event()

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        assert await reader.read() == b""
        closed.set()

    async with serve(handle) as far, client() as http:
        response = await http.send("GET", far.url, {})
        assert await response.read() == b"a"
        response.close()
        await closed.wait()
        assert http.num_connections == 0


async def test_cancelled_request_closes_connection() -> None:
    requested = asyncio.Event()
    closed = asyncio.Event()

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        requested.set()
        assert await reader.read() == b""
        closed.set()

    async with serve(handle) as far, client() as http:
        task = asyncio.create_task(http.send("GET", far.url, {}))
        await requested.wait()
        task.cancel()
        await closed.wait()
        assert http.num_connections == 0


async def test_drained_response_keeps_connection() -> None:
    async with serve(repeating(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")) as far, client() as http:
        for _ in range(2):
            (await http.send("GET", far.url, {})).close(drain=True)
            while not http.num_idle:  # noqa: ASYNC110 - the limit of the test ends it
                await asyncio.sleep(0)
        assert far.connections == 1


async def test_endless_response_drain_closes_connection() -> None:
    closed = asyncio.Event()

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        writer.write(CHUNKED)
        try:
            while True:
                writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
                await writer.drain()
        except OSError:
            closed.set()

    async with serve(handle) as far, client() as http:
        (await http.send("GET", far.url, {})).close(drain=True)
        await closed.wait()
        assert http.num_connections == 0


async def test_idle_connection_closed_by_server_is_replaced() -> None:
    async with serve(answering(OK)) as far, client() as http:
        assert await get(http, far.url) == b"ok"
        response = await http.send("POST", far.url, {}, b"once")
        response.close()
        assert far.connections == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_lost_request_is_retried_only_for_safe_methods(method: str) -> None:
    """The server reads the second request of the first connection, and disconnects
    without a response.
    """

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = far.connections
        await far.read_request(reader)
        writer.write(OK)
        await far.read_request(reader)
        if number > 1:
            writer.write(OK)

    async with serve(handle) as far, client() as http:
        assert await get(http, far.url) == b"ok"
        if method == "GET":
            assert await get(http, far.url) == b"ok"
        else:
            with pytest.raises(ConnectionLost):
                await http.send(method, far.url, {}, b"x")
        assert len(far.requests) == (3 if method == "GET" else 2)


async def test_partially_sent_request_is_retried() -> None:
    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = far.connections
        await far.read_request(reader)
        writer.write(OK)
        if number > 1:
            await far.read_request(reader)
            writer.write(OK)
        else:
            await reader.readexactly(10)
            writer.transport.abort()

    async with serve(handle) as far, client() as http:
        assert await get(http, far.url) == b"ok"
        response = await http.send("POST", far.url, {}, bytes(32 << 20))
        assert await response.read_all(10) == b"ok"
        assert far.connections == 2


async def test_lost_new_connection_is_not_retried() -> None:
    async with serve(answering()) as far, client() as http:
        with pytest.raises(HttpClientError):
            await get(http, far.url)
        assert far.connections == 1


async def test_unsolicited_bytes_close_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unasked = asyncio.Event()

    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        writer.write(OK)
        await unasked.wait()
        writer.write(OK.replace(b"ok", b"no"))
        await reader.read()

    async with serve(handle) as far, client() as http:
        assert await get(http, far.url) == b"ok"
        unasked.set()
        while http.num_connections:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    assert "not requested" in caplog.text


@pytest.mark.parametrize("sent", [b"", OK[:10], CHUNKED, CHUNKED + b"2\r\nok"])
async def test_silent_server_raises_response_timeout(sent: bytes) -> None:
    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        writer.write(sent)
        await reader.read()

    async with serve(handle) as far, client(read=0.01) as http:
        with pytest.raises(ResponseTimeout):
            await get(http, far.url)
        assert http.num_connections == 0


async def test_refused_connection_raises_connect_failed() -> None:
    async with serve(repeating(OK)) as far:
        pass
    async with client() as http:
        with pytest.raises(ConnectFailed):
            await get(http, far.url)


async def test_client_close_ends_running_requests() -> None:
    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        await reader.read()

    async with serve(handle) as far, client() as http:
        response = await http.send("GET", far.url, {})
        assert await response.read() == b"a"
        reading = asyncio.create_task(response.read())
        await asyncio.sleep(0)
        await http.close()
        with pytest.raises(ClientClosed):
            await reading
        with pytest.raises(ClientClosed):
            await get(http, far.url)


async def test_client_connects_over_unix_socket(tmp_path: Path) -> None:
    far = StubServer()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await far.read_request(reader)
        writer.write(OK)
        writer.close()

    path = str(tmp_path / "s")
    async with await asyncio.start_unix_server(handle, path), client(uds=path) as http:
        assert await get(http, "http://engine/x") == b"ok"
    assert far.requests[0].startswith(b"GET /x HTTP/1.1\r\nhost: engine\r\n")


def test_unix_socket_ignores_environment_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    HttpClient(uds="s")


def build_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Build the TLS contexts of a server, and of a client that trusts it."""
    certificate, key = write_certificate(folder, "far")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    server.set_alpn_protocols(["http/1.1"])
    trusting = ssl.create_default_context(cafile=str(certificate))
    trusting.set_alpn_protocols(["http/1.1"])
    return server, trusting


async def test_tls_certificate_and_host_name_are_verified(tmp_path: Path) -> None:
    server, trusting = build_contexts(tmp_path)
    async with serve(repeating(OK), server) as far:
        async with client(context=trusting) as http:
            for host in ("localhost", "127.0.0.1", "localhost"):
                assert await get(http, f"https://{host}:{far.port}/") == b"ok"
            assert far.connections == 2
            with pytest.raises(ConnectFailed):
                # The certificate is for other names.
                await get(http, f"https://127.0.0.2:{far.port}/")
        async with client() as http:
            with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
                await get(http, f"https://localhost:{far.port}/")


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def connect(
    far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Run a proxy that opens tunnels."""
    await far.read_request(reader)
    host, _, port = far.requests[-1].split(b" ")[1].decode().rpartition(":")
    inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    try:
        await asyncio.gather(relay(reader, inner_writer), relay(inner_reader, writer))
    finally:
        inner_writer.close()


async def test_https_request_uses_proxy_connect_tunnel(tmp_path: Path) -> None:
    server, trusting = build_contexts(tmp_path)
    async with serve(repeating(OK), server) as far, serve(connect) as proxy:
        settings = {"https": f"http://user:p%40ss@127.0.0.1:{proxy.port}"}
        async with client(proxies=settings, context=trusting) as http:
            assert [await get(http, f"https://localhost:{far.port}/") for _ in range(2)] == [
                b"ok"
            ] * 2
        assert proxy.connections == far.connections == 1
        (request,) = proxy.requests
        authority = b"localhost:%d" % far.port
        assert request == (
            b"CONNECT " + authority + b" HTTP/1.1\r\nhost: " + authority + b"\r\n"
            b"proxy-authorization: Basic dXNlcjpwQHNz\r\n\r\n"
        )
        assert b"proxy-authorization" not in far.requests[0]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ],
)
async def test_proxy_refusing_tunnel_raises_connect_failed(answer: bytes, tmp_path: Path) -> None:
    _, trusting = build_contexts(tmp_path)
    async with serve(answering(answer)) as proxy:
        async with client(
            proxies={"https": f"http://127.0.0.1:{proxy.port}"}, context=trusting
        ) as http:
            with pytest.raises(ConnectFailed):
                await get(http, "https://localhost:1/")
        assert proxy.connections == 1


async def test_http_request_is_forwarded_by_proxy() -> None:
    async with serve(repeating(OK)) as proxy:
        async with client(
            proxies={"http": f"http://u:@127.0.0.1:{proxy.port}", "no": "direct.test"}
        ) as http:
            assert await get(http, "http://far.test/a?b") == b"ok"
        assert proxy.requests == [
            b"GET http://far.test/a?b HTTP/1.1\r\nhost: far.test\r\naccept-encoding: identity\r\n"
            b"proxy-authorization: Basic dTo=\r\n\r\n"
        ]


async def test_endless_response_head_is_rejected() -> None:
    async def handle(
        far: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await far.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x: " + b"y" * 1000 + b"\r\n")
            await writer.drain()

    async with serve(handle) as far, client() as http:
        with pytest.raises(InvalidResponse, match="102400 bytes"):
            await get(http, far.url)
