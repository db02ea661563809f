"""A transport without a network: a function answers the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from inspect import isawaitable
from typing import Any

import httpx2

from dragoman_http import ConnectFailed, ConnectionLost, HeaderFields, HttpResponse
from dragoman_http.response_head import BodyFraming, ClientResponseHead

RequestHandler = Callable[[httpx2.Request], httpx2.Response | Awaitable[httpx2.Response]]


class FakeTransport:
    """Passes requests to `handle`, without their connections.

    addresses: those that requests were to be connected to.
    """

    def __init__(self, handle: RequestHandler) -> None:
        self._handle = handle
        self.addresses: list[str | None] = []

    async def send(
        self,
        method: str,
        url: str,
        headers: HeaderFields,
        body: bytes = b"",
        *,
        read_timeout: float | None = None,
        connect_to: str | None = None,
    ) -> HttpResponse:
        self.addresses.append(connect_to)
        pairs: Any = headers if isinstance(headers, list) else dict(headers)
        request = httpx2.Request(method, url, headers=pairs, content=body)
        try:
            answer = self._handle(request)
            return _FakeResponse(await answer if isawaitable(answer) else answer)
        except httpx2.TransportError as error:
            raise ConnectFailed(str(error)) from error

    async def close(self) -> None: ...


class _FakeSource:
    """The connection of a fake response."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer
        self.closing: asyncio.Task[None] | None = None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abandon(self, *, drain: bool) -> None:
        self.closing = asyncio.get_running_loop().create_task(self._answer.aclose())


class _FakeResponse(HttpResponse):
    def __init__(self, answer: httpx2.Response) -> None:
        raw = [(name.lower(), value) for name, value in answer.headers.raw]
        head = ClientResponseHead(
            answer.status_code, dict(answer.headers), raw, BodyFraming.CLOSE, keeps_alive=False
        )
        loop = asyncio.get_running_loop()
        super().__init__(head, _FakeSource(answer), loop, is_decoded=False)
        self._chunks = _read_chunks(answer)

    async def read(self) -> bytes | None:
        try:
            return await anext(self._chunks, None)
        except httpx2.TransportError as error:
            raise ConnectionLost(str(error)) from error


async def _read_chunks(answer: httpx2.Response) -> AsyncGenerator[bytes]:
    # A response that was built with its content counts as read.
    if answer.is_stream_consumed:
        if answer.content:
            yield answer.content
    else:
        async for chunk in answer.aiter_raw():
            yield chunk
