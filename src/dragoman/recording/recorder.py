"""A recording reverse proxy: forwards bytes as they arrive, and records them with their times.

Requests (API keys included) and responses are forwarded unchanged, except for hop-by-hop headers and Accept-Encoding:
responses are requested uncompressed so that the recording is readable. Recording delays no token: a thread of its own
writes the file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol

import anyio
import httpx2
from starlette.types import Receive, Scope, Send

from ..core.errors import RequestError
from .cassette import (
    VERSION,
    CassetteHeader,
    RecordedChunk,
    RecordedExchange,
    cancel_on_disconnect,
    encode_data,
    encode_line,
    filter_request_headers,
    filter_response_headers,
    read_body,
    read_raw_path,
    redact_query,
    run_lifespan,
    send_error,
    send_request_error,
)

HOP_BY_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers that a proxy does not forward (RFC 9110, section 7.6.1)."""
RawHeaders = list[tuple[bytes, bytes]]


class CassetteSink(Protocol):
    def put(self, exchange: RecordedExchange) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """An ASGI application.

    client: sends to the upstream; its base_url is the upstream.
    now: seconds; monotonic.
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
        # The client's own default headers, such as User-Agent, would be headers that the original client has not sent.
        for name in list(client.headers):
            del client.headers[name]
        self._client, self._cassette, self._now, self._hosts = client, cassette, now, hosts
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
            # Also after a disconnect: what has arrived until then is recorded as `left`.
            if (exchange := proxied.build_exchange()) is not None:
                self._cassette.put(exchange)


class _ProxiedRequest:
    """One request in flight."""

    def __init__(self, scope: Scope, body: bytes, now: Callable[[], float], offset: float) -> None:
        self._scope, self._body, self._now, self._offset = scope, body, now, offset
        self._started_at = now()
        self._status: int | None = None
        self._response_headers: RawHeaders = []
        self._head_at = self._end_at = 0.0
        self._chunks: list[tuple[float, bytes]] = []
        self._outcome: Literal["complete", "cut", "left"] = "left"

    async def forward(self, client: httpx2.AsyncClient, send: Send) -> None:
        try:
            async with client.stream(
                self._scope["method"],
                _build_upstream_url(client, self._scope),
                headers=_build_upstream_headers(self._scope),
                content=self._body,
            ) as response:
                await self._relay_response(response, send)
        except httpx2.HTTPError as error:
            self._end_at = self._now() - self._started_at
            self._outcome = "cut"
            if self._status is None:
                await send_error(send, 502, f"The upstream did not respond: {type(error).__name__}.")
            # A truncated response stays unfinished: the server closes the connection.

    async def _relay_response(self, response: httpx2.Response, send: Send) -> None:
        self._head_at = self._now() - self._started_at
        self._status = response.status_code
        connection_headers = _parse_connection_header(response.headers.get("connection", ""))
        self._response_headers = [
            pair
            for pair in response.headers.raw
            if pair[0].lower().decode("latin-1") not in HOP_BY_HOP_HEADERS | connection_headers
        ]
        await send({"type": "http.response.start", "status": self._status, "headers": self._response_headers})
        async for raw in response.aiter_raw():
            # The time is taken before `send`, which waits for a slow client.
            self._chunks.append((self._now() - self._started_at, raw))
            await send({"type": "http.response.body", "body": raw, "more_body": True})
        self._end_at = self._now() - self._started_at
        # Before the last `send`: the upstream's response is complete even if the client disconnects now.
        self._outcome = "complete"
        await send({"type": "http.response.body"})

    def build_exchange(self) -> RecordedExchange | None:
        """The exchange; None if the upstream sent no response."""
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


def _build_upstream_url(client: httpx2.AsyncClient, scope: Scope) -> httpx2.URL:
    """A URL below the upstream's, whatever the path contains: it cannot select another host."""
    base = client.base_url
    path = (base.raw_path.rstrip(b"/") + b"/" + read_raw_path(scope).encode("latin-1").lstrip(b"/")).rstrip(b"?")
    query = scope["query_string"]
    return base.copy_with(raw_path=path + (b"?" + query if query else b""))


def _build_upstream_headers(scope: Scope) -> RawHeaders:
    raw: RawHeaders = list(scope["headers"])
    connection_headers = {
        name for key, value in raw if key == b"connection" for name in _parse_connection_header(value.decode("latin-1"))
    }
    # httpx2 sets Host and Content-Length itself: the upstream's, and that of a body that is sent as one piece.
    excluded = HOP_BY_HOP_HEADERS | connection_headers | {"host", "accept-encoding", "content-length"}
    return [*(pair for pair in raw if pair[0].decode("latin-1") not in excluded), (b"accept-encoding", b"identity")]


def _parse_connection_header(connection: str) -> set[str]:
    """Names of the hop-by-hop headers that the Connection header lists."""
    return {name.strip().lower() for name in connection.split(",") if name.strip()}


def _decode_headers(pairs: RawHeaders) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs]


class CassetteWriter:
    """Appends exchanges to a file; each is flushed before the next one is written. Must be closed."""

    def __init__(self, path: Path, upstream: str) -> None:
        self._file = path.open("ab")
        self._queue: SimpleQueue[RecordedExchange | None] = SimpleQueue()
        self._file.write(encode_line(CassetteHeader(VERSION, upstream)))
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
