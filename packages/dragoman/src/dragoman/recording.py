"""Recording and replay of an upstream's traffic: the same request gets the same bytes
at the same times.

Times are seconds since the whole request has arrived, with its body, so a late chunk
does not delay the following ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol
from urllib.parse import parse_qsl, urlencode

import anyio
import httpx2
import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from .core.errors import BodyTooLarge, RequestError
from .serving.cors import CorsPolicy, check_host

FORMAT_VERSION = 1
RECORDED_REQUEST_HEADERS = frozenset(
    {"accept", "content-type", "content-encoding", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta",
     "x-request-id", "x-stainless-lang", "x-stainless-package-version"}
)  # fmt: skip
"""Request headers that are recorded. An allowlist, because API keys are sent under many
names.
"""
OMITTED_HEADER_WORDS = (
    "authorization",
    "cookie",
    "token",
    "secret",
    "api-key",
    "apikey",
    "organization",
    "project",
)
"""Response headers whose names contain any of these words are not recorded, except
counts.
"""
SECRET_QUERY_WORDS = ("key", "token", "secret", "sig", "auth", "password", "credential")
"""Query parameters whose names contain any of these words are recorded without their
values.
"""
HOP_BY_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers that a proxy does not forward (RFC 9110, section 7.6.1)."""

HeaderList = list[tuple[str, str]]
RawHeaders = list[tuple[bytes, bytes]]
LifespanHook = Callable[[], Awaitable[None]]
MatchMode = Literal["question", "path"]
"""The rule that matches requests to recorded exchanges.

question: same method, path, query and body.
path: same method and path.
"""

# Allows no web page of another origin.
_NO_PAGES = CorsPolicy()


# The file format: a header line, then one line of JSON per exchange.


class CassetteError(ValueError):
    """Raised for files that are not a recording, or one of another version; the message
    names the line.
    """


class Base64Data(Struct, frozen=True):
    base64: bytes


Data = str | Base64Data


def encode_data(raw: bytes) -> Data:
    """Return text if the bytes are UTF-8, else base64."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64Data(raw)


def decode_data(data: Data) -> bytes:
    return data.encode() if isinstance(data, str) else data.base64


class RecordedChunk(Struct, frozen=True, array_like=True):
    """A chunk of a response body.

    at: seconds since the request.
    """

    at: float
    data: Data


class RecordedExchange(Struct, frozen=True, kw_only=True):
    """A request and its response.

    at: arrival of the request, seconds since the start of the recording.
    headers, body: of the request.
    status, answer_headers: of the response.
    head_at: arrival of the response's head, seconds since the request.
    pieces: the response body.
    end_at: end of the response, seconds since the request.
    ended: "complete"; "cut" if the upstream broke off; "left" if the client
        disconnected.
    """

    at: float
    method: str
    path: str
    query: str = ""
    headers: HeaderList = []
    body: Data = ""
    status: int
    answer_headers: HeaderList = []
    head_at: float
    pieces: list[RecordedChunk] = []
    end_at: float
    ended: Literal["complete", "cut", "left"] = "complete"


class CassetteHeader(Struct, frozen=True):
    """The first line of the file, and of every appended run."""

    dragoman_recording: int
    upstream: str


def filter_request_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    """Return the headers of a request that are recorded."""
    return [(name, value) for name, value in raw if name.lower() in RECORDED_REQUEST_HEADERS]


def filter_response_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    """Return the headers of a response that are recorded."""

    def is_recorded(name: str) -> bool:
        # Counts of tokens, such as x-ratelimit-remaining-tokens, are no secrets, and
        # clients use them.
        is_count = "ratelimit" in name or name.endswith("tokens")
        return is_count or not any(word in name for word in OMITTED_HEADER_WORDS)

    return [(name, value) for name, value in raw if is_recorded(name.lower())]


def redact_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode(
        [
            (name, "" if any(word in name.lower() for word in SECRET_QUERY_WORDS) else value)
            for name, value in pairs
        ]
    )


def hash_request(method: str, path: str, query: str, body: bytes) -> bytes:
    """Return a hash that equal requests share: of method, path, query, and the body as
    canonical JSON.
    """
    # Redacted as in the file: a hash of a secret's value would match no recorded
    # request.
    parts = [
        method,
        path,
        urlencode(sorted(parse_qsl(redact_query(query), keep_blank_values=True))),
    ]
    try:
        # The order of fields and the white space differ between clients, and do not
        # matter.
        canonical_body = (
            msgspec.json.encode(msgspec.json.decode(body), order="deterministic") if body else b""
        )
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        canonical_body = body
    return blake2b("\n".join(parts).encode() + b"\n" + canonical_body, digest_size=16).digest()


def encode_line(line: RecordedExchange | CassetteHeader) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read_cassette(lines: Iterable[bytes]) -> list[RecordedExchange]:
    """Parse a recording. Raises CassetteError."""
    exchanges: list[RecordedExchange] = []
    has_header = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            # Only at the start of the line: the body of an exchange may contain the
            # same text.
            if b'"dragoman_recording"' in line[:40]:
                version = msgspec.json.decode(line, type=CassetteHeader).dragoman_recording
                if version != FORMAT_VERSION:
                    raise CassetteError(
                        f"line {number}: the recording has version {version}; the supported "
                        f"version is {FORMAT_VERSION}"
                    )
                has_header = True
                continue
            exchange = msgspec.json.decode(line, type=RecordedExchange)
        except RecursionError:
            raise CassetteError(f"line {number}: nested too deeply") from None
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise CassetteError(f"line {number}: {error}") from None
        if not has_header:
            raise CassetteError(f"line {number}: this is not a recording: the header is missing")
        exchanges.append(exchange)
    if not has_header:
        raise CassetteError("the file is not a recording: the header is missing")
    return exchanges


# Shared by the two ASGI applications, ReplayApp and RecordingProxy: lifespan, request
# body with its checks, errors.


async def run_lifespan(
    receive: Receive, send: Send, on_startup: LifespanHook, on_shutdown: LifespanHook
) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await on_startup()
            await send({"type": "lifespan.startup.complete"})
        else:
            await on_shutdown()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def read_body(
    scope: Scope, receive: Receive, *, limit: int, hosts: Sequence[str]
) -> bytes | None:
    """Read the whole body; None if the client has disconnected.

    Raises:
        RequestError: the body is too large, the Host is not allowed, or the request
            comes from a page of another origin. These checks matter because the
            upstream may need no key.
    """
    headers = Headers(scope=scope)
    check_host(headers, tuple(hosts))
    _NO_PAGES.check_origin(headers, by_name=True)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise BodyTooLarge(f"The body has more than {limit} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


async def cancel_on_disconnect(receive: Receive, cancel_scope: anyio.CancelScope) -> None:
    """Cancel the scope when the client disconnects; runs concurrently with the
    response.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel_scope.cancel()


def read_raw_path(scope: Scope) -> str:
    """Return the path as it was sent, percent-encoded."""
    # `raw_path` is optional in ASGI.
    return (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")


async def send_error(send: Send, status: int, message: str) -> None:
    """Send an error in OpenAI's envelope, which most clients can show. Such errors are
    never recorded.
    """
    body = msgspec.json.encode(
        {"error": {"message": message, "type": "dragoman_error", "param": None, "code": None}}
    )
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_request_error(send: Send, error: RequestError) -> None:
    await send_error(send, error.status, error.message)


# Replay.


class ReplayApp:
    """An ASGI application that replays exchanges.

    A request that was recorded several times gets its responses in order, then starts
    again with the first. Exchanges that the client aborted are not replayed.

    hosts: names allowed in the Host header, besides loopback.
    time_scale: speed; 10 is ten times as fast, infinity is without delays.
    """

    def __init__(
        self,
        exchanges: Sequence[RecordedExchange],
        *,
        hosts: Sequence[str],
        time_scale: float = 1.0,
        match_mode: MatchMode = "question",
        max_body_bytes: int = 32 * 2**20,
    ) -> None:
        if not time_scale > 0:
            raise ValueError("the time scale must be more than 0")
        self._hosts = hosts
        self._time_scale = time_scale
        self._match_mode = match_mode
        self._max_body_bytes = max_body_bytes
        self._exchanges: dict[bytes, list[RecordedExchange]] = {}
        self._next_index: dict[bytes, int] = {}
        for exchange in exchanges:
            if exchange.ended != "left":
                key = self._build_key(
                    exchange.method, exchange.path, exchange.query, decode_data(exchange.body)
                )
                self._exchanges.setdefault(key, []).append(exchange)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await run_lifespan(
                    receive, send, anyio.lowlevel.checkpoint, anyio.lowlevel.checkpoint
                )
            case "http":
                await self._handle_http(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, limit=self._max_body_bytes, hosts=self._hosts)
        except RequestError as error:
            await send_request_error(send, error)
            return
        if body is None:
            return
        # RecordingProxy too starts its clock here: a slow upload is not part of the
        # upstream's times.
        started_at = asyncio.get_running_loop().time()
        path = read_raw_path(scope)
        key = self._build_key(scope["method"], path, scope["query_string"].decode("latin-1"), body)
        exchanges = self._exchanges.get(key)
        if exchanges is None:
            await send_error(
                send, 404, f"The recording has no response for this {scope['method']} {path}."
            )
            return
        index = self._next_index.get(key, 0)
        self._next_index[key] = index + 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_on_disconnect, receive, tasks.cancel_scope)
            await self._play(exchanges[index % len(exchanges)], started_at, send)
            # The task that waits for a disconnect does not end by itself.
            tasks.cancel_scope.cancel()

    def _build_key(self, method: str, path: str, query: str, body: bytes) -> bytes:
        return (
            hash_request(method, path, query, body)
            if self._match_mode == "question"
            else f"{method} {path}".encode()
        )

    async def _play(self, exchange: RecordedExchange, started_at: float, send: Send) -> None:
        async def until(offset: float) -> None:
            delay = started_at + offset / self._time_scale - asyncio.get_running_loop().time()
            if delay > 0:
                await asyncio.sleep(delay)

        await until(exchange.head_at)
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in exchange.answer_headers
        ]
        await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
        for chunk in exchange.pieces:
            await until(chunk.at)
            await send(
                {"type": "http.response.body", "body": decode_data(chunk.data), "more_body": True}
            )
        await until(exchange.end_at)
        if exchange.ended == "complete":
            await send({"type": "http.response.body"})
        # After "cut" the response stays unfinished, so the server closes the connection
        # as the upstream did.


# Recording.


class CassetteSink(Protocol):
    def put(self, exchange: RecordedExchange) -> None: ...

    def close(self) -> None: ...


class RecordingProxy:
    """An ASGI application that forwards requests to an upstream, relays the response as
    it arrives, and records both.

    client: sends to the upstream, which is its base_url, without a query.
    now: monotonic clock, seconds.
    hosts: names allowed in the Host header, besides loopback.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        cassette: CassetteSink,
        *,
        now: Callable[[], float],
        hosts: Sequence[str],
        max_body_bytes: int = 32 * 2**20,
    ) -> None:
        # The upstream must not see default headers, such as User-Agent, that the
        # original client did not send.
        for name in list(client.headers):
            del client.headers[name]
        self._client = client
        self._cassette = cassette
        self._now = now
        self._hosts = hosts
        self._max_body_bytes = max_body_bytes
        self._started_at = now()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await run_lifespan(receive, send, anyio.lowlevel.checkpoint, self._close)
            case "http":
                await self._handle_http(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    async def _close(self) -> None:
        await self._client.aclose()
        self._cassette.close()

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, limit=self._max_body_bytes, hosts=self._hosts)
        except RequestError as error:
            await send_request_error(send, error)
            return
        if body is None:
            return
        proxied = _ProxiedRequest(scope, body, self._now, self._now() - self._started_at)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_on_disconnect, receive, tasks.cancel_scope)
                await proxied.forward(self._client, send)
                # The task that waits for a disconnect does not end by itself.
                tasks.cancel_scope.cancel()
        finally:
            # Also after a disconnect: the part that has arrived is recorded as "left".
            if (exchange := proxied.build_exchange()) is not None:
                self._cassette.put(exchange)


class _ProxiedRequest:
    """A request that is being forwarded."""

    def __init__(self, scope: Scope, body: bytes, now: Callable[[], float], offset: float) -> None:
        self._scope = scope
        self._body = body
        self._now = now
        self._offset = offset
        self._started_at = now()
        self._status: int | None = None
        self._response_headers: RawHeaders = []
        self._head_at = self._end_at = 0.0
        self._chunks: list[tuple[float, bytes]] = []
        self._outcome: Literal["complete", "cut", "left"] = "left"

    async def forward(self, client: httpx2.AsyncClient, send: Send) -> None:
        base = client.base_url
        query = self._scope["query_string"]
        # Always below the upstream's URL: no path of a client can select another host.
        path = (
            base.raw_path.rstrip(b"/")
            + b"/"
            + read_raw_path(self._scope).encode("latin-1").lstrip(b"/")
        )
        url = base.copy_with(raw_path=path + (b"?" + query if query else b""))
        headers: RawHeaders = list(self._scope["headers"])
        connection = b",".join(value for name, value in headers if name == b"connection").decode(
            "latin-1"
        )
        # httpx2 sets Host and Content-Length itself.
        excluded = HOP_BY_HOP_HEADERS | _parse_connection_header(connection)
        excluded |= {"host", "accept-encoding", "content-length"}
        headers = [pair for pair in headers if pair[0].decode("latin-1") not in excluded]
        headers.append((b"accept-encoding", b"identity"))
        try:
            async with client.stream(
                self._scope["method"], url, headers=headers, content=self._body
            ) as response:
                self._head_at = self._now() - self._started_at
                self._status = response.status_code
                excluded = HOP_BY_HOP_HEADERS | _parse_connection_header(
                    response.headers.get("connection", "")
                )
                self._response_headers = [
                    pair
                    for pair in response.headers.raw
                    if pair[0].lower().decode("latin-1") not in excluded
                ]
                await send(
                    {
                        "type": "http.response.start",
                        "status": self._status,
                        "headers": self._response_headers,
                    }
                )
                async for raw in response.aiter_raw():
                    # The time is taken before `send`, which waits for a slow client.
                    self._chunks.append((self._now() - self._started_at, raw))
                    await send({"type": "http.response.body", "body": raw, "more_body": True})
                self._end_at = self._now() - self._started_at
                # Set before the last `send`: the upstream's response is complete even
                # if the client disconnects now.
                self._outcome = "complete"
                await send({"type": "http.response.body"})
        except httpx2.HTTPError as error:
            self._end_at = self._now() - self._started_at
            self._outcome = "cut"
            if self._status is None:
                await send_error(
                    send, 502, f"The upstream did not respond: {type(error).__name__}."
                )
            # A truncated response stays unfinished: the server closes the connection.

    def build_exchange(self) -> RecordedExchange | None:
        """Build the exchange for the recording; None if the upstream sent no response."""
        if self._status is None:
            return None
        scope = self._scope
        return RecordedExchange(
            at=self._offset,
            method=scope["method"],
            path=read_raw_path(scope),
            query=redact_query(scope["query_string"].decode("latin-1")),
            headers=filter_request_headers(_decode_headers(scope["headers"])),
            body=encode_data(self._body),
            status=self._status,
            answer_headers=filter_response_headers(_decode_headers(self._response_headers)),
            head_at=self._head_at,
            pieces=[RecordedChunk(offset, encode_data(raw)) for offset, raw in self._chunks],
            end_at=self._end_at or self._now() - self._started_at,
            ended=self._outcome,
        )


def _parse_connection_header(connection: str) -> set[str]:
    """Return the names of the hop-by-hop headers that the Connection header lists."""
    return {name.strip().lower() for name in connection.split(",") if name.strip()}


def _decode_headers(pairs: RawHeaders) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs]


class CassetteWriter:
    """Appends exchanges to a file in a thread, and flushes after each one. Must be
    closed.
    """

    def __init__(self, path: Path, upstream: str) -> None:
        self._file = path.open("ab")
        self._queue: SimpleQueue[RecordedExchange | None] = SimpleQueue()
        self._file.write(encode_line(CassetteHeader(FORMAT_VERSION, upstream)))
        self._thread = threading.Thread(target=self._write_queued, name="recording", daemon=True)
        self._thread.start()

    def put(self, exchange: RecordedExchange) -> None:
        """Queue an exchange; never blocks."""
        self._queue.put(exchange)

    def close(self) -> None:
        """Write all queued exchanges and close the file."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _write_queued(self) -> None:
        while (exchange := self._queue.get()) is not None:
            self._file.write(encode_line(exchange))
            self._file.flush()
