"""Plays a recording: the same question gets the same bytes, at the same beats. There is no model behind it.

Times are absolute, from the moment at which the request was there: a piece that is late does not shift what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import anyio
from starlette.types import Receive, Scope, Send

from ..core.errors import RequestError
from .http import cancel_when_left, lifespan, read_body, refuse, refuse_error, sent_path
from .tape import Exchange, question, raw_of

Match = Literal["question", "path"]
"""Which recorded exchange answers a request: one with the same body, or just the next one of that method and path."""


class Player:
    """An ASGI application.

    A question that was recorded several times is answered in that order, and then from the first on. time_scale: 10
    is ten times as fast, infinity at once. Exchanges that the client left are not played.
    """

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        *,
        hosts: Sequence[str],
        time_scale: float = 1.0,
        match: Match = "question",
        max_body_bytes: int = 32 * 2**20,
    ) -> None:
        if not time_scale > 0:
            raise ValueError("the time scale must be more than 0")
        self._hosts, self._scale, self._match, self._max_body_bytes = hosts, time_scale, match, max_body_bytes
        self._answers: dict[bytes, list[Exchange]] = {}
        self._turns: dict[bytes, int] = {}
        for each in exchanges:
            if each.ended != "left":
                key = self._key(each.method, each.path, each.query, raw_of(each.body))
                self._answers.setdefault(key, []).append(each)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await lifespan(receive, send, anyio.lowlevel.checkpoint, anyio.lowlevel.checkpoint)
            case "http":
                await self._http(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = asyncio.get_running_loop().time()
        try:
            body = await read_body(scope, receive, limit=self._max_body_bytes, hosts=self._hosts)
        except RequestError as error:
            await refuse_error(send, error)
            return
        if body is None:
            return
        path = sent_path(scope)
        answer = self._next(scope["method"], path, scope["query_string"].decode("latin-1"), body)
        if answer is None:
            await refuse(send, 404, f"The recording has no response for this {scope['method']} {path}.")
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
            await self._play(answer, begin, send)
            tasks.cancel_scope.cancel()

    def _key(self, method: str, path: str, query: str, body: bytes) -> bytes:
        return question(method, path, query, body) if self._match == "question" else f"{method} {path}".encode()

    def _next(self, method: str, path: str, query: str, body: bytes) -> Exchange | None:
        key = self._key(method, path, query, body)
        found = self._answers.get(key)
        if found is None:
            return None
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        return found[turn % len(found)]

    async def _play(self, answer: Exchange, begin: float, send: Send) -> None:
        async def until(at: float) -> None:
            left = begin + at / self._scale - asyncio.get_running_loop().time()
            if left > 0:
                await asyncio.sleep(left)

        await until(answer.head_at)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.answer_headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        for piece in answer.pieces:
            await until(piece.at)
            await send({"type": "http.response.body", "body": raw_of(piece.data), "more_body": True})
        await until(answer.end_at)
        if answer.ended == "complete":
            await send({"type": "http.response.body"})
        # Else it breaks off here, as it did: the server closes the connection.
