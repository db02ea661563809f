"""The disconnect extension, as applications use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send
from tests.http.wire import GET, HEAD, piece, serving, start, stream

from dragoman.http.asgi_extensions import DISCONNECT_EXTENSION, OnDisconnect, find_on_disconnect


def test_find_on_disconnect_without_extension_returns_none() -> None:
    def watch(_: Callable[[], object] | None, /) -> None: ...

    assert find_on_disconnect({"extensions": {DISCONNECT_EXTENSION: watch}}) is watch
    assert find_on_disconnect({"extensions": {"tls": {}}}) is None
    assert find_on_disconnect({"type": "http"}) is None
    assert find_on_disconnect({"extensions": None}) is None


class Notifications:
    """The notifications of one request's watcher."""

    def __init__(self) -> None:
        self.times = 0
        self.received = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self.received.set()


async def test_disconnect_is_reported_once_without_pending_receive() -> None:
    notifications = Notifications()
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        watch = find_on_disconnect(scope)
        assert watch is not None
        watch(notifications)
        begun.set()
        await notifications.received.wait()
        await send(start())

    async with serving(app) as wire:
        _, writer = await wire.connect()
        writer.write(GET)
        await begun.wait()
        writer.close()
        await notifications.received.wait()
        await wire.wait_until_closed()
    assert notifications.times == 1


async def test_disconnect_is_detected_behind_pipelined_requests() -> None:
    notifications = Notifications()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        watch = find_on_disconnect(scope)
        assert watch is not None
        watch(notifications)
        await send(start())
        await send(piece(b"begun", more=True))
        await notifications.received.wait()

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(GET * 3)
        await reader.readuntil(b"begun")
        writer.close()
        await notifications.received.wait()


async def test_disconnect_after_response_or_unwatch_is_not_reported() -> None:
    notifications = Notifications()
    last = asyncio.Event()
    callbacks: list[OnDisconnect] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        watch = find_on_disconnect(scope)
        assert watch is not None
        callbacks.append(watch)
        watch(notifications)
        if scope["path"] == "/last":
            watch(None)
            last.set()
            await receive()
            await receive()
        else:
            await stream(scope, receive, send)
            watch(notifications)

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(b"GET /last " + HEAD + b"\r\n")
        await last.wait()
        writer.close()
        await wire.wait_until_closed()
        await asyncio.sleep(0)
        assert notifications.times == 0
        callbacks[0](notifications)
        await asyncio.sleep(0)
        assert notifications.times == 0
        # A late receive still gets the disconnect, unless the response was complete.
        callbacks[1](notifications)
        await notifications.received.wait()
    assert notifications.times == 1


async def test_half_closed_connection_counts_as_disconnect() -> None:
    """As under uvicorn: a half-closed connection counts as disconnected."""
    messages: list[Any] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        messages.extend([(await receive())["type"], (await receive())["type"]])
        await send(start())

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(GET)
        writer.write_eof()
        assert await reader.read(-1) == b""
        writer.close()
        await wire.wait_until_closed()
    assert messages == ["http.request", "http.disconnect"]
