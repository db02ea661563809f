"""Replay of a recording: the same request gets the same bytes at the same times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

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
from .cassette import RecordedExchange, decode_data
from .redaction import redact_body, redact_query

MatchMode = Literal["question", "path"]
"""The rule that matches requests to recorded exchanges.

question: same method, path, query and body.
path: same method and path.
"""


def hash_request(method: str, path: str, query: str, body: bytes) -> bytes:
    """Return a hash that equal requests share: of method, path, query, and the body as
    canonical JSON.
    """
    # Redacted as in the file: a hash of a secret's value would match no recorded
    # request.
    body = redact_body(body)
    # Bytes that are no UTF-8 stay what they are.
    pairs = parse_qsl(redact_query(query), keep_blank_values=True, errors="surrogateescape")
    parts = [method, path, urlencode(sorted(pairs), errors="surrogateescape")]
    try:
        # The order of fields and the white space differ between clients, and do not
        # matter.
        canonical_body = (
            msgspec.json.encode(msgspec.json.decode(body), order="deterministic") if body else b""
        )
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        canonical_body = body
    return blake2b("\n".join(parts).encode() + b"\n" + canonical_body, digest_size=16).digest()


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
        key = self._build_key(scope["method"], path, read_raw_query(scope), body)
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
