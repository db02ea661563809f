"""The recording proxy: forwards requests to an upstream, then records each exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import anyio
from starlette.types import Receive, Scope, Send

from dragoman_http import HttpClientError, HttpResponse, HttpTransport

from ..core.errors import RequestError
from .asgi_request import (
    cancel_on_disconnect,
    read_body,
    read_raw_path,
    read_raw_query,
    run_lifespan,
    send_error,
    send_request_error,
)
from .cassette import HOP_BY_HOP_HEADERS, RecordedChunk, RecordedExchange, encode_data
from .redaction import (
    RESPONSE_SECRETS,
    filter_request_headers,
    filter_response_headers,
    redact_body,
    redact_query,
)

RawHeaders = list[tuple[bytes, bytes]]


class CassetteSink(Protocol):
    def put(self, exchange: RecordedExchange) -> None: ...

    def close(self) -> None: ...


class RecordingProxy:
    """An ASGI application that forwards requests to an upstream, relays the response as
    it arrives, and records both.

    client: sends to the upstream, and decodes no bodies.
    upstream: URL without a query, below which all paths are requested.
    now: monotonic clock, seconds.
    hosts: names allowed in the Host header, besides loopback.
    """

    def __init__(
        self,
        client: HttpTransport,
        upstream: str,
        cassette: CassetteSink,
        *,
        now: Callable[[], float],
        hosts: Sequence[str],
        max_body_bytes: int = 32 * 2**20,
    ) -> None:
        self._client = client
        self._upstream = upstream
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
        await self._client.close()
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
                await proxied.forward(self._client, self._upstream, send)
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

    async def forward(self, client: HttpTransport, upstream: str, send: Send) -> None:
        query = read_raw_query(self._scope)
        # Always below the upstream's URL: no path of a client can select another host.
        path = read_raw_path(self._scope).removeprefix("/") + (f"?{query}" if query else "")
        # A `#` would begin a fragment, which is not sent.
        url = f"{upstream.rstrip('/')}/{path.replace('#', '%23')}"
        headers: RawHeaders = list(self._scope["headers"])
        connection = b",".join(value for name, value in headers if name == b"connection").decode(
            "latin-1"
        )
        # The client sets Host and Content-Length itself, and asks for bodies that are not
        # compressed, since a compressed recording cannot be read.
        excluded = HOP_BY_HOP_HEADERS | _parse_connection_header(connection)
        excluded |= {"host", "accept-encoding", "content-length"}
        forwarded = [pair for pair in _decode_headers(headers) if pair[0] not in excluded]
        try:
            response = await client.send(self._scope["method"], url, forwarded, self._body)
            try:
                await self._relay(response, send)
            finally:
                response.close()
        except HttpClientError as error:
            self._end_at = self._now() - self._started_at
            self._outcome = "cut"
            if self._status is None:
                await send_error(
                    send, 502, f"The upstream did not respond: {type(error).__name__}."
                )
            # A truncated response stays unfinished: the server closes the connection.

    async def _relay(self, response: HttpResponse, send: Send) -> None:
        self._head_at = self._now() - self._started_at
        self._status = response.status
        excluded = HOP_BY_HOP_HEADERS | _parse_connection_header(
            response.headers.get("connection", "")
        )
        self._response_headers = [
            pair for pair in response.raw_headers if pair[0].decode("latin-1") not in excluded
        ]
        await send(
            {
                "type": "http.response.start",
                "status": self._status,
                "headers": self._response_headers,
            }
        )
        while piece := await response.read():
            # The time is taken before `send`, which waits for a slow client.
            self._chunks.append((self._now() - self._started_at, piece))
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        self._end_at = self._now() - self._started_at
        # Set before the last `send`: the upstream's response is complete even if the
        # client disconnects now.
        self._outcome = "complete"
        await send({"type": "http.response.body"})

    def build_exchange(self) -> RecordedExchange | None:
        """Build the exchange for the recording; None if the upstream sent no response."""
        if self._status is None:
            return None
        scope = self._scope
        chunks = self._redact_chunks()
        headers = filter_response_headers(_decode_headers(self._response_headers))
        if chunks is not self._chunks:
            headers = [pair for pair in headers if pair[0] != "content-length"]
        return RecordedExchange(
            at=self._offset,
            method=scope["method"],
            path=read_raw_path(scope),
            query=redact_query(read_raw_query(scope)),
            headers=filter_request_headers(_decode_headers(scope["headers"])),
            body=encode_data(redact_body(self._body)),
            status=self._status,
            answer_headers=headers,
            head_at=self._head_at,
            pieces=[RecordedChunk(offset, encode_data(raw)) for offset, raw in chunks],
            end_at=self._end_at or self._now() - self._started_at,
            ended=self._outcome,
        )

    def _redact_chunks(self) -> list[tuple[float, bytes]]:
        """Return the response in its chunks, or in one if it is a JSON object with a
        secret.
        """
        body = b"".join(raw for _, raw in self._chunks)
        redacted = redact_body(body, RESPONSE_SECRETS)
        if redacted == body:
            return self._chunks
        return [(self._chunks[-1][0], redacted)]


def _parse_connection_header(connection: str) -> set[str]:
    """Return the names of the hop-by-hop headers that the Connection header lists."""
    return {name.strip().lower() for name in connection.split(",") if name.strip()}


def _decode_headers(pairs: RawHeaders) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs]
