"""Replays a recording: the same request gets the same bytes at the same times. No model is involved.

Times are absolute since the arrival of the request: a late chunk does not delay the following ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import anyio
from starlette.types import Receive, Scope, Send

from ..core.errors import RequestError
from .cassette import (
    RecordedExchange,
    cancel_on_disconnect,
    decode_data,
    hash_request,
    read_body,
    read_raw_path,
    run_lifespan,
    send_error,
    send_request_error,
)

MatchMode = Literal["question", "path"]
"""Which recorded exchange answers a request: one with the same body, or the next one of that method and path."""


class Player:
    """An ASGI application that replays exchanges.

    time_scale: 10 is ten times as fast, infinity is without delays.

    A request that was recorded several times gets the responses in order, then again from the first one. Exchanges that
    the client aborted are not replayed.
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
        self._hosts, self._time_scale, self._match_mode, self._max_body_bytes = (
            hosts,
            time_scale,
            match_mode,
            max_body_bytes,
        )
        self._exchanges: dict[bytes, list[RecordedExchange]] = {}
        self._next_index: dict[bytes, int] = {}
        for exchange in exchanges:
            if exchange.ended != "left":
                key = self._build_key(exchange.method, exchange.path, exchange.query, decode_data(exchange.body))
                self._exchanges.setdefault(key, []).append(exchange)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await run_lifespan(receive, send, anyio.lowlevel.checkpoint, anyio.lowlevel.checkpoint)
            case "http":
                await self._handle_http(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = asyncio.get_running_loop().time()
        try:
            body = await read_body(scope, receive, limit=self._max_body_bytes, hosts=self._hosts)
        except RequestError as error:
            await send_request_error(send, error)
            return
        if body is None:
            return
        path = read_raw_path(scope)
        exchange = self._find_next(scope["method"], path, scope["query_string"].decode("latin-1"), body)
        if exchange is None:
            await send_error(send, 404, f"The recording has no response for this {scope['method']} {path}.")
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_on_disconnect, receive, tasks.cancel_scope)
            await self._play(exchange, started_at, send)
            # The task that waits for a disconnect does not end by itself.
            tasks.cancel_scope.cancel()

    def _build_key(self, method: str, path: str, query: str, body: bytes) -> bytes:
        return (
            hash_request(method, path, query, body) if self._match_mode == "question" else f"{method} {path}".encode()
        )

    def _find_next(self, method: str, path: str, query: str, body: bytes) -> RecordedExchange | None:
        key = self._build_key(method, path, query, body)
        exchanges = self._exchanges.get(key)
        if exchanges is None:
            return None
        index = self._next_index.get(key, 0)
        self._next_index[key] = index + 1
        return exchanges[index % len(exchanges)]

    async def _play(self, exchange: RecordedExchange, started_at: float, send: Send) -> None:
        async def until(offset: float) -> None:
            delay = started_at + offset / self._time_scale - asyncio.get_running_loop().time()
            if delay > 0:
                await asyncio.sleep(delay)

        await until(exchange.head_at)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in exchange.answer_headers]
        await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
        for chunk in exchange.pieces:
            await until(chunk.at)
            await send({"type": "http.response.body", "body": decode_data(chunk.data), "more_body": True})
        await until(exchange.end_at)
        if exchange.ended == "complete":
            await send({"type": "http.response.body"})
        # A recorded response that was cut breaks off here too: the server closes the connection.
