"""Connections of the client: reuse, backpressure, aborts and timeouts, on real
sockets.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from dragoman_http import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    HttpClient,
    HttpClientError,
    InvalidResponse,
    ResponseTimeout,
)
from tests.certificates import write_certificate

from .stub_server import (
    CHUNKED,
    OK,
    StubServer,
    fetch_body,
    open_client,
    repeat_response,
    send_responses,
    serve,
)


async def test_connection_is_reused_after_full_response() -> None:
    async with serve(repeat_response(OK)) as stub, open_client() as http:
        assert [await fetch_body(http, stub.url) for _ in range(3)] == [b"ok"] * 3
        assert (stub.connections, http.num_connections) == (1, 1)


async def test_concurrent_requests_use_separate_connections() -> None:
    async with serve(repeat_response(OK)) as stub, open_client() as http:
        assert await asyncio.gather(*(fetch_body(http, stub.url) for _ in range(5))) == [b"ok"] * 5
        assert stub.connections == 5


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nconnection: close", b"HTTP/1.0 200 OK"])
async def test_connection_closed_by_server_is_not_reused(head: bytes) -> None:
    closing_response = head + b"\r\ncontent-length: 2\r\n\r\nok"
    async with serve(repeat_response(closing_response)) as stub, open_client() as http:
        assert [await fetch_body(http, stub.url) for _ in range(2)] == [b"ok"] * 2
        assert stub.connections == 2


async def test_request_bytes_match_expected_format() -> None:
    async with serve(repeat_response(OK)) as stub, open_client() as http:
        response = await http.send(
            "POST", f"http://localhost:{stub.port}/a%20b/é?c=d", {"x-one": "1"}, b"body"
        )
        response.close(drain=True)
        host = b"localhost:%d" % stub.port
        assert stub.requests == [
            b"POST /a%20b/%C3%A9?c=d HTTP/1.1\r\nhost: "
            + host
            + b"\r\naccept-encoding: identity\r\nx-one: 1\r\n"
            b"content-length: 4\r\n\r\n"
        ]


async def test_connect_to_address_keeps_host_of_url() -> None:
    # The proxy would resolve the host itself.
    proxies = {"http": "http://127.0.0.1:9"}
    async with serve(repeat_response(OK)) as stub, open_client(proxies=proxies) as http:
        url = f"http://name.invalid:{stub.port}/x"
        for _ in range(2):
            response = await http.send("GET", url, {}, connect_to="127.0.0.1")
            assert await response.read_all(10) == b"ok"
        assert stub.connections == 1
        assert b"\r\nhost: name.invalid:%d\r\n" % stub.port in stub.requests[0]
        # An address is part of the route: the connection serves no other request.
        with pytest.raises(ConnectFailed):
            await http.send("GET", url, {})


async def test_request_without_read_timeout_gets_response() -> None:
    async with serve(repeat_response(OK)) as stub, open_client(read=math.inf) as http:
        assert await fetch_body(http, stub.url) == b"ok"


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "\x00"])
async def test_header_injection_raises_value_error(value: str) -> None:
    async with open_client() as http:
        with pytest.raises(ValueError, match="x-key"):
            await http.send("GET", "http://127.0.0.1:1/", {"x-key": value})


async def test_large_request_body_is_sent_completely() -> None:
    received: list[bytes] = []

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        received.append(await stub.read_request(reader))
        writer.write(OK)

    body = bytes(range(256)) * 16384
    async with serve(handle) as stub, open_client() as http:
        response = await http.send("POST", stub.url, {}, body)
        assert await response.read_all(100) == b"ok"
    assert received == [body]


async def test_slow_consumer_applies_backpressure_to_server() -> None:
    """Until the consumer reads, the server can write only what the sockets and the
    client buffer.
    """
    written = 0

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal written
        await stub.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 << 20))
        for _ in range(64):
            writer.write(bytes(1 << 20))
            await writer.drain()
            written += 1 << 20

    async with serve(handle) as stub, open_client() as http:
        response = await http.send("GET", stub.url, {})
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
    num_direct = 0

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(CHUNKED)
        for number in range(10):
            writer.write(b"2\r\n%02d\r\n" % number)
            while len(received) <= number:  # noqa: ASYNC110 - the limit of the test ends it
                await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    def receive(piece: bytes) -> bool:
        nonlocal num_direct
        if num_direct == 6:
            return False
        num_direct += 1
        received.append(piece)
        return True

    async with serve(handle) as stub, open_client() as http:
        response = await http.send("GET", stub.url, {})
        response.receive_directly(receive)
        while (piece := await response.read()) is not None:
            received.append(piece)
    assert received == [b"%02d" % number for number in range(10)]
    assert num_direct == 6


async def test_aborted_response_closes_connection() -> None:
    closed = asyncio.Event()

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        assert await reader.read() == b""
        closed.set()

    async with serve(handle) as stub, open_client() as http:
        response = await http.send("GET", stub.url, {})
        assert await response.read() == b"a"
        response.close()
        await closed.wait()
        assert http.num_connections == 0


async def test_cancelled_request_closes_connection() -> None:
    requested = asyncio.Event()
    closed = asyncio.Event()

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        requested.set()
        assert await reader.read() == b""
        closed.set()

    async with serve(handle) as stub, open_client() as http:
        task = asyncio.create_task(http.send("GET", stub.url, {}))
        await requested.wait()
        task.cancel()
        await closed.wait()
        assert http.num_connections == 0


async def test_drained_response_keeps_connection() -> None:
    async with (
        serve(repeat_response(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")) as stub,
        open_client() as http,
    ):
        for _ in range(2):
            (await http.send("GET", stub.url, {})).close(drain=True)
            while not http.num_idle:  # noqa: ASYNC110 - the limit of the test ends it
                await asyncio.sleep(0)
        assert stub.connections == 1


async def test_endless_response_drain_closes_connection() -> None:
    closed = asyncio.Event()

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(CHUNKED)
        try:
            while True:
                writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
                await writer.drain()
        except OSError:
            closed.set()

    async with serve(handle) as stub, open_client() as http:
        (await http.send("GET", stub.url, {})).close(drain=True)
        await closed.wait()
        assert http.num_connections == 0


async def test_idle_connection_closed_by_server_is_replaced() -> None:
    async with serve(send_responses(OK)) as stub, open_client() as http:
        assert await fetch_body(http, stub.url) == b"ok"
        response = await http.send("POST", stub.url, {}, b"once")
        response.close()
        assert stub.connections == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_lost_request_is_retried_only_for_safe_methods(method: str) -> None:
    """The server reads the second request of the first connection, and disconnects
    without a response.
    """

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = stub.connections
        await stub.read_request(reader)
        writer.write(OK)
        await stub.read_request(reader)
        if number > 1:
            writer.write(OK)

    async with serve(handle) as stub, open_client() as http:
        assert await fetch_body(http, stub.url) == b"ok"
        if method == "GET":
            assert await fetch_body(http, stub.url) == b"ok"
        else:
            with pytest.raises(ConnectionLost):
                await http.send(method, stub.url, {}, b"x")
        assert len(stub.requests) == (3 if method == "GET" else 2)


async def test_partially_sent_request_is_retried() -> None:
    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = stub.connections
        await stub.read_request(reader)
        writer.write(OK)
        if number > 1:
            await stub.read_request(reader)
            writer.write(OK)
        else:
            await reader.readexactly(10)
            writer.transport.abort()

    async with serve(handle) as stub, open_client() as http:
        assert await fetch_body(http, stub.url) == b"ok"
        response = await http.send("POST", stub.url, {}, bytes(32 << 20))
        assert await response.read_all(10) == b"ok"
        assert stub.connections == 2


async def test_lost_new_connection_is_not_retried() -> None:
    async with serve(send_responses()) as stub, open_client() as http:
        with pytest.raises(HttpClientError):
            await fetch_body(http, stub.url)
        assert stub.connections == 1


async def test_unsolicited_bytes_close_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response_was_read = asyncio.Event()

    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(OK)
        await response_was_read.wait()
        writer.write(OK.replace(b"ok", b"no"))
        await reader.read()

    async with serve(handle) as stub, open_client() as http:
        assert await fetch_body(http, stub.url) == b"ok"
        response_was_read.set()
        while http.num_connections:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    assert "not requested" in caplog.text


@pytest.mark.parametrize("sent", [b"", OK[:10], CHUNKED, CHUNKED + b"2\r\nok"])
async def test_silent_server_raises_response_timeout(sent: bytes) -> None:
    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(sent)
        await reader.read()

    async with serve(handle) as stub, open_client(read=0.01) as http:
        with pytest.raises(ResponseTimeout):
            await fetch_body(http, stub.url)
        assert http.num_connections == 0


async def test_refused_connection_raises_connect_failed() -> None:
    async with serve(repeat_response(OK)) as stub:
        pass
    async with open_client() as http:
        with pytest.raises(ConnectFailed):
            await fetch_body(http, stub.url)


async def test_client_close_ends_running_requests() -> None:
    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        await reader.read()

    async with serve(handle) as stub, open_client() as http:
        response = await http.send("GET", stub.url, {})
        assert await response.read() == b"a"
        reading = asyncio.create_task(response.read())
        await asyncio.sleep(0)
        await http.close()
        with pytest.raises(ClientClosed):
            await reading
        with pytest.raises(ClientClosed):
            await fetch_body(http, stub.url)


async def test_client_connects_over_unix_socket(tmp_path: Path) -> None:
    stub = StubServer()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stub.read_request(reader)
        writer.write(OK)
        writer.close()

    path = str(tmp_path / "s")
    async with await asyncio.start_unix_server(handle, path), open_client(uds=path) as http:
        assert await fetch_body(http, "http://engine/x") == b"ok"
    assert stub.requests[0].startswith(b"GET /x HTTP/1.1\r\nhost: engine\r\n")


def test_unix_socket_ignores_environment_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    HttpClient(uds="s")


def build_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Build the TLS contexts of a server, and of a client that trusts it."""
    certificate, key = write_certificate(folder, "stub")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    server_context.set_alpn_protocols(["http/1.1"])
    client_context = ssl.create_default_context(cafile=str(certificate))
    client_context.set_alpn_protocols(["http/1.1"])
    return server_context, client_context


async def test_tls_certificate_and_host_name_are_verified(tmp_path: Path) -> None:
    server_context, client_context = build_contexts(tmp_path)
    async with serve(repeat_response(OK), server_context) as stub:
        async with open_client(context=client_context) as http:
            for host in ("localhost", "127.0.0.1", "localhost"):
                assert await fetch_body(http, f"https://{host}:{stub.port}/") == b"ok"
            assert stub.connections == 2
            with pytest.raises(ConnectFailed):
                # The certificate is for other names.
                await fetch_body(http, f"https://127.0.0.2:{stub.port}/")
        async with open_client() as http:
            with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
                await fetch_body(http, f"https://localhost:{stub.port}/")


async def test_ssl_cert_file_replaces_system_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_context, _ = build_contexts(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "stub.pem"))
    async with serve(repeat_response(OK), server_context) as stub, open_client() as http:
        assert await fetch_body(http, f"https://localhost:{stub.port}/") == b"ok"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_ssl_cert_dir_replaces_system_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_context, _ = build_contexts(tmp_path)
    rehash_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    async with serve(repeat_response(OK), server_context) as stub, open_client() as http:
        assert await fetch_body(http, f"https://localhost:{stub.port}/") == b"ok"


def rehash_certificates(folder: Path) -> None:
    """Link each certificate by the hash of its subject, by which OpenSSL finds it."""
    subprocess.run(["openssl", "rehash", str(folder)], check=True, capture_output=True)


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def run_connect_proxy(
    stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Run a proxy that opens tunnels."""
    await stub.read_request(reader)
    host, _, port = stub.requests[-1].split(b" ")[1].decode().rpartition(":")
    inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    try:
        await asyncio.gather(relay(reader, inner_writer), relay(inner_reader, writer))
    finally:
        inner_writer.close()


async def test_https_request_uses_proxy_connect_tunnel(tmp_path: Path) -> None:
    server_context, client_context = build_contexts(tmp_path)
    async with (
        serve(repeat_response(OK), server_context) as stub,
        serve(run_connect_proxy) as proxy,
    ):
        settings = {"https": f"http://user:p%40ss@127.0.0.1:{proxy.port}"}
        async with open_client(proxies=settings, context=client_context) as http:
            assert [
                await fetch_body(http, f"https://localhost:{stub.port}/") for _ in range(2)
            ] == [b"ok"] * 2
        assert proxy.connections == stub.connections == 1
        (request,) = proxy.requests
        authority = b"localhost:%d" % stub.port
        assert request == (
            b"CONNECT " + authority + b" HTTP/1.1\r\nhost: " + authority + b"\r\n"
            b"proxy-authorization: Basic dXNlcjpwQHNz\r\n\r\n"
        )
        assert b"proxy-authorization" not in stub.requests[0]


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
    _, client_context = build_contexts(tmp_path)
    async with serve(send_responses(answer)) as proxy:
        async with open_client(
            proxies={"https": f"http://127.0.0.1:{proxy.port}"}, context=client_context
        ) as http:
            with pytest.raises(ConnectFailed):
                await fetch_body(http, "https://localhost:1/")
        assert proxy.connections == 1


async def test_http_request_is_forwarded_by_proxy() -> None:
    async with serve(repeat_response(OK)) as proxy:
        async with open_client(
            proxies={"http": f"http://u:@127.0.0.1:{proxy.port}", "no": "direct.test"}
        ) as http:
            assert await fetch_body(http, "http://stub.test/a?b") == b"ok"
        assert proxy.requests == [
            b"GET http://stub.test/a?b HTTP/1.1\r\nhost: stub.test\r\naccept-encoding: identity\r\n"
            b"proxy-authorization: Basic dTo=\r\n\r\n"
        ]


async def test_endless_response_head_is_rejected() -> None:
    async def handle(
        stub: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await stub.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x: " + b"y" * 1000 + b"\r\n")
            await writer.drain()

    async with serve(handle) as stub, open_client() as http:
        with pytest.raises(InvalidResponse, match="102400 bytes"):
            await fetch_body(http, stub.url)
