"""The extension as an application finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from dragoman.http.asgi_extensions import DISCONNECT_EXTENSION, OnDisconnect, find_on_disconnect
from tests.http.wire import GET, HEAD, piece, serving, start, stream


def test_a_server_may_have_it_or_not() -> None:
    def watch(_: Callable[[], object] | None, /) -> None: ...

    assert find_on_disconnect({"extensions": {DISCONNECT_EXTENSION: watch}}) is watch
    assert find_on_disconnect({"extensions": {"tls": {}}}) is None
    assert find_on_disconnect({"type": "http"}) is None
    assert find_on_disconnect({"extensions": None}) is None


class Told:
    """What a watcher of one request was told, and how often."""

    def __init__(self) -> None:
        self.times, self.came = 0, asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self.came.set()


async def test_who_leaves_is_told_of_once_while_nobody_asks() -> None:
    told, begun = Told(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        watch = find_on_disconnect(scope)
        assert watch is not None
        watch(told)
        begun.set()
        await told.came.wait()
        await send(start())

    async with serving(app) as wire:
        _, writer = await wire.connect()
        writer.write(GET)
        await begun.wait()
        writer.close()
        await told.came.wait()
        await wire.over()
    assert told.times == 1


async def test_who_leaves_is_seen_behind_requests_that_wait() -> None:
    told = Told()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        watch = find_on_disconnect(scope)
        assert watch is not None
        watch(told)
        await send(start())
        await send(piece(b"begun", more=True))
        await told.came.wait()

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(GET * 3)
        await reader.readuntil(b"begun")
        writer.close()
        await told.came.wait()


async def test_after_the_response_or_when_nobody_watches_nobody_is_told() -> None:
    told, last = Told(), asyncio.Event()
    kept: list[OnDisconnect] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        watch = find_on_disconnect(scope)
        assert watch is not None
        kept.append(watch)
        watch(told)
        if scope["path"] == "/last":
            watch(None)
            last.set()
            await receive()
            await receive()
        else:
            await stream(scope, receive, send)
            watch(told)

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(b"GET /last " + HEAD + b"\r\n")
        await last.wait()
        writer.close()
        await wire.over()
        await asyncio.sleep(0)
        assert told.times == 0
        kept[0](told)
        await asyncio.sleep(0)
        assert told.times == 0
        # Who asks too late is told all the same, unless the response was complete.
        kept[1](told)
        await told.came.wait()
    assert told.times == 1


async def test_who_says_no_more_has_left() -> None:
    """As under uvicorn: half of a connection is none."""
    heard: list[Any] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])
        await send(start())

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(GET)
        writer.write_eof()
        assert await reader.read(-1) == b""
        writer.close()
        await wire.over()
    assert heard == ["http.request", "http.disconnect"]
