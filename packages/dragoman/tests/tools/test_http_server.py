"""MCP over HTTP: sessions, errors, limits, and which URLs are used."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dragoman.serving.media_fetcher import is_public, resolve_addresses
from dragoman.tools import mcp_servers
from dragoman.tools.http_transport import MAX_UNMATCHED
from dragoman.tools.interface import ToolServerError, ToolServerErrorKind, ToolServerRequest
from dragoman.tools.mcp_servers import McpServers
from dragoman.tools.tool_file import ServerEntry, ToolFile
from tests.loopback import serve_app

TIMEOUT = 60.0
SPAM = b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\n'


class McpServer:
    """A server whose path names how it answers a call.

    heads: the headers of each message, with its method.
    """

    def __init__(self) -> None:
        self.heads: list[tuple[str, dict[str, str]]] = []
        self.n_calls = 0
        routes = [Route("/{kind}", self.handle, methods=["POST", "DELETE", "GET"])]
        self.app = Starlette(routes=routes)

    async def handle(self, http: Request) -> Response:
        if http.method != "POST":
            self.heads.append((http.method, dict(http.headers)))
            return Response()
        message = json.loads(await http.body())
        method: str = message["method"]
        self.heads.append((method, dict(http.headers)))
        if "id" not in message:
            return Response(status_code=202)
        if method == "initialize":
            n_sessions = sum(name == "initialize" for name, _ in self.heads)
            headers = {"mcp-session-id": f"session-{n_sessions}"}
            return respond(message, {"protocolVersion": "2025-06-18"}, headers)
        if method == "tools/list":
            return respond(message, {"tools": [{"name": "look", "inputSchema": {}}]})
        self.n_calls += 1
        return self.answer_call(http.path_params["kind"], message, http.headers)

    def answer_call(self, kind: str, message: Any, headers: Any) -> Response:
        if kind == "expired" and headers["mcp-session-id"] == "session-1":
            return Response(status_code=404)
        if kind in FAULTS:
            return FAULTS[kind]()
        result = {"content": [{"type": "text", "text": "sun"}]}
        if kind == "stream":
            answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
            return stream(SPAM + f"data: {answer}\n\n".encode())
        return respond(message, result)


def respond(message: Any, result: Any, headers: dict[str, str] | None = None) -> Response:
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    return JSONResponse(answer, headers=headers)


def stream(data: bytes) -> Response:
    async def body() -> AsyncGenerator[bytes]:
        yield data

    return StreamingResponse(body(), media_type="text/event-stream")


FAULTS: Mapping[str, Callable[[], Response]] = {
    "redirect": lambda: Response(status_code=307, headers={"location": "/stolen"}),
    "denied": lambda: Response("s3cret", status_code=401),
    "large": lambda: Response(b"x" * 4_000_000, media_type="application/json"),
    "compressed": lambda: Response(
        gzip.compress(b"{}"), 200, {"content-encoding": "gzip"}, "application/json"
    ),
    "wrong-id": lambda: JSONResponse({"jsonrpc": "2.0", "id": 0, "result": {"content": []}}),
    "spam": lambda: stream(SPAM * (MAX_UNMATCHED + 1)),
    "cut-off": lambda: stream(SPAM),
}


@pytest.fixture(scope="module")
def running() -> Generator[tuple[McpServer, str]]:
    server = McpServer()
    with serve_app(server.app) as address:
        yield server, address


@pytest.fixture
def server(running: tuple[McpServer, str]) -> McpServer:
    running[0].heads.clear()
    running[0].n_calls = 0
    return running[0]


@pytest.fixture
def address(running: tuple[McpServer, str]) -> str:
    return running[1]


@asynccontextmanager
async def run_servers(
    file: ToolFile, resolve: Callable[..., Any] = resolve_addresses
) -> AsyncGenerator[McpServers]:
    servers = McpServers(file, resolve=resolve, is_public=is_public, now=lambda: 0.0)
    try:
        yield servers
    finally:
        await servers.close()


def allow(*urls: str) -> ToolFile:
    return ToolFile(allowed_urls=urls, allow_private_addresses=True)


async def call(servers: McpServers, url: str, **fields: Any) -> str:
    request = ToolServerRequest(label="s", server_url=url, **fields)
    async with servers.open(request) as tools:
        return (await tools.call("look", "{}", timeout=TIMEOUT)).text


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("redirect", ToolServerErrorKind.HTTP, 307),
        ("denied", ToolServerErrorKind.HTTP, 401),
        ("large", ToolServerErrorKind.TOO_LARGE, None),
        ("compressed", ToolServerErrorKind.PROTOCOL, None),
        ("wrong-id", ToolServerErrorKind.PROTOCOL, None),
        ("spam", ToolServerErrorKind.PROTOCOL, None),
        ("cut-off", ToolServerErrorKind.CONNECTION, None),
    ],
)
async def test_http_server_invalid_answer_raises(
    server: McpServer, address: str, kind: str, error: ToolServerErrorKind, code: int | None
) -> None:
    async with run_servers(allow(f"{address}/*")) as servers:
        with pytest.raises(ToolServerError) as raised:
            await call(servers, f"{address}/{kind}")
    assert (raised.value.kind, raised.value.code) == (error, code)
    assert "s3cret" not in raised.value.message
    assert server.n_calls == 1


async def test_http_server_session_is_reused_and_ended(server: McpServer, address: str) -> None:
    async with run_servers(allow(f"{address}/*")) as servers:
        await asyncio.gather(*(call(servers, f"{address}/plain") for _ in range(3)))
    methods = [method for method, _ in server.heads]
    assert methods.count("initialize") == 1
    assert methods.count("tools/call") == 3
    assert methods[-1] == "DELETE"
    _, head = server.heads[-2]
    assert head["mcp-session-id"] == "session-1"
    assert head["mcp-protocol-version"] == "2025-06-18"


async def test_http_server_expired_session_is_renewed_once(server: McpServer, address: str) -> None:
    async with run_servers(allow(f"{address}/*")) as servers:
        assert await call(servers, f"{address}/expired") == "sun"
    assert [method for method, _ in server.heads].count("initialize") == 2
    assert server.n_calls == 2


async def test_http_server_streamed_answer_is_read(server: McpServer, address: str) -> None:
    async with run_servers(allow(f"{address}/*")) as servers:
        assert await call(servers, f"{address}/stream") == "sun"


async def test_http_server_secrets_of_clients_are_separate(server: McpServer, address: str) -> None:
    async with run_servers(allow(f"{address}/*")) as servers:
        await call(servers, f"{address}/plain", authorization="a", headers=(("x-team", "red"),))
        await call(servers, f"{address}/plain", authorization="b")
    heads = [head for method, head in server.heads if method == "tools/call"]
    assert [head["authorization"] for head in heads] == ["Bearer a", "Bearer b"]
    assert [head.get("x-team") for head in heads] == ["red", None]
    assert heads[0]["mcp-session-id"] != heads[1]["mcp-session-id"]


async def test_http_server_sessions_of_keys_are_separate(server: McpServer, address: str) -> None:
    async with run_servers(allow(f"{address}/*")) as servers:
        for owner in ("a", "b", None, "a"):
            await call(servers, f"{address}/plain", authorization="same", owner=owner)
    ids = [head["mcp-session-id"] for method, head in server.heads if method == "tools/call"]
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]


async def test_http_server_full_pool_opens_one_session(
    server: McpServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_servers, "MAX_SESSIONS", 1)
    async with run_servers(allow(f"{address}/*")) as servers:
        await call(servers, f"{address}/plain", authorization="a")
        url = f"{address}/plain"
        await asyncio.gather(*(call(servers, url, authorization="b") for _ in range(3)))
    methods = [method for method, _ in server.heads]
    assert (methods.count("initialize"), methods.count("DELETE")) == (2, 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"headers": (("Host", "other"),)}, "'host' cannot be set"),
        ({"headers": (("mcp-session-id", "1"),)}, "'mcp-session-id' cannot be set"),
        ({"headers": (("x", "s3cret\r\nhost: other"),)}, "malformed"),
        ({"authorization": "s3cret\r\nx: y"}, "malformed"),
    ],
)
async def test_http_server_invalid_header_is_refused(
    server: McpServer, address: str, fields: Any, reason: str
) -> None:
    async with run_servers(allow(f"{address}/*")) as servers:
        with pytest.raises(ToolServerError, match=reason) as raised:
            await call(servers, f"{address}/plain", **fields)
    assert raised.value.kind is ToolServerErrorKind.REFUSED
    assert "s3cret" not in raised.value.message
    assert server.heads == []


async def test_http_server_private_address_is_refused(server: McpServer, address: str) -> None:
    async with run_servers(ToolFile(allowed_urls=(f"{address}/*",))) as servers:
        with pytest.raises(ToolServerError, match="not public") as raised:
            await call(servers, f"{address}/plain")
    assert raised.value.kind is ToolServerErrorKind.REFUSED
    assert server.heads == []


async def test_http_server_host_is_resolved_once(server: McpServer, address: str) -> None:
    answers = [["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "mcp.example"
        return answers.pop()

    url = address.replace("127.0.0.1", "mcp.example") + "/plain"
    async with run_servers(allow(url), resolve) as servers:
        assert await call(servers, url) == "sun"
        assert await call(servers, url) == "sun"
    assert server.heads[0][1]["host"].startswith("mcp.example:")


async def test_http_server_unlisted_url_is_refused(address: str) -> None:
    async with run_servers(allow(f"{address}/other")) as servers:
        with pytest.raises(ToolServerError, match="does not allow") as raised:
            await call(servers, f"{address}/plain")
    assert raised.value.kind is ToolServerErrorKind.REFUSED


async def test_operator_server_takes_no_headers_of_clients(address: str) -> None:
    file = ToolFile(servers={"s": ServerEntry(url=f"{address}/plain")})
    async with run_servers(file) as servers:
        for request in (
            ToolServerRequest(label="s", authorization="a"),
            ToolServerRequest(label="unknown"),
        ):
            with pytest.raises(ToolServerError) as raised:
                async with servers.open(request):
                    pass
            assert raised.value.kind is ToolServerErrorKind.REFUSED
