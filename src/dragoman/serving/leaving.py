"""Work for a client that may leave before it is done, and how that is heard where a server does not tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from ..http.leaving import EXTENSION, Watch
from .body import ClientGone

T = TypeVar("T")


def nobody(_: Callable[[], object] | None, /) -> None:
    """The `Watch` of a request that no client waits for."""


async def unless_gone(watch: Watch, work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to; it is cancelled when the client leaves. The request's body has been read.

    Raises ClientGone.
    """
    working = asyncio.get_running_loop().create_task(work)
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = working.cancel()

    watch(leave)
    try:
        return await working
    except asyncio.CancelledError:
        if gone:
            raise ClientGone from None
        raise
    finally:
        watch(None)


async def telling(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The application under a server without the extension, as if it had it."""
    waiting = _Waiting(receive)
    extensions: dict[str, object] = scope.get("extensions") or {}
    try:
        await app({**scope, "extensions": {**extensions, EXTENSION: waiting.watch}}, receive, send)
    finally:
        await waiting.end()


class _Waiting:
    """The extension, by a task that waits in `receive`: whoever watches has read the body."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._callback: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, callback: Callable[[], object] | None, /) -> None:
        """As `http.leaving.Watch`."""
        self._callback = callback
        if callback is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        # A client that has left is told of as often as anybody asks.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    async def end(self) -> None:
        """Nothing outlives its request."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
