"""The client for code without an event loop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dragoman_http import (
    BlockingHttpClient,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    HttpClient,
    ProxyRules,
)

PIECE = b"first"


class Handler(BaseHTTPRequestHandler):
    """Answers with the path, or as the path says."""

    protocol_version = "HTTP/1.1"
    is_closed: threading.Event

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "/target")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("content-length", str(len(self.path)))
            self.end_headers()
            self.wfile.write(self.path.encode())
            return
        self.end_headers()
        self.wfile.write(PIECE)
        # Until the client closes the connection.
        with suppress(OSError):
            self.rfile.read(1)
        self.is_closed.set()
        self.close_connection = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body) + 10))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


@contextmanager
def serving() -> Generator[tuple[str, threading.Event]]:
    handler = type("OneHandler", (Handler,), {"is_closed": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.is_closed
        finally:
            server.shutdown()
            thread.join()


def open_client() -> BlockingHttpClient:
    return BlockingHttpClient(HttpClient(proxies=ProxyRules({})))


def test_blocking_client_serves_several_threads() -> None:
    with serving() as (url, _), open_client() as http:

        def fetch(number: int) -> bytes:
            with http.send("GET", f"{url}/{number}", {}) as response:
                return response.read_all(100)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(fetch, range(40))) == [b"/%d" % number for number in range(40)]


def test_blocking_client_follows_redirects_on_request() -> None:
    with serving() as (url, _), open_client() as http:
        with http.send("GET", f"{url}/moved", {}) as response:
            assert response.status == 302
        with http.get_following_redirects(f"{url}/moved", {}, max_redirects=1) as response:
            assert list(response) == [b"/target"]


def test_blocking_response_left_early_closes_connection() -> None:
    with serving() as (url, is_closed), open_client() as http:
        with http.send("GET", f"{url}/endless", {}) as response:
            assert next(iter(response)) == PIECE
        assert is_closed.wait(60)


def test_blocking_response_cut_off_raises_connection_lost() -> None:
    with (
        serving() as (url, _),
        open_client() as http,
        http.send("POST", url, {}, b"half") as response,
        pytest.raises(ConnectionLost),
    ):
        response.read_all(100)


def test_blocking_client_without_server_raises_connect_failed() -> None:
    with socket.socket() as bound, open_client() as http:
        # Bound, but not listening.
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConnectFailed), http.send("GET", url, {}):
            pass


def test_blocking_client_transport_closed_ends_reading() -> None:
    transport = HttpClient(proxies=ProxyRules({}))
    with (
        serving() as (url, _),
        BlockingHttpClient(transport) as http,
        http.send("GET", f"{url}/endless", {}) as response,
        ThreadPoolExecutor(1) as pool,
    ):
        pieces = iter(response)
        assert next(pieces) == PIECE
        waiting = pool.submit(next, pieces)
        http.run(transport.close())
        with pytest.raises(ClientClosed):
            waiting.result(60)


def test_blocking_client_closed_fails_running_and_later_requests() -> None:
    with serving() as (url, _):
        http = open_client()
        with http.send("GET", f"{url}/endless", {}) as response:
            assert next(iter(response)) == PIECE
            http.close()
            with pytest.raises(ClientClosed):
                response.read_all(100)
        with pytest.raises(ClientClosed), http.send("GET", f"{url}/1", {}):
            pass
        http.close()


def test_blocking_client_close_beside_requests_ends_them() -> None:
    def repeat(http: BlockingHttpClient, url: str) -> None:
        while True:
            try:
                with http.send("GET", f"{url}/1", {}) as response:
                    response.read_all(100)
            except ClientClosed:
                return

    with serving() as (url, _), ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            http = open_client()
            repeating = [pool.submit(repeat, http, url) for _ in range(4)]
            http.close()
            for each in repeating:
                each.result(60)
