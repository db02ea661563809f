"""Work for a client that may leave before it is done, and how that is heard where a server does not tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from ..http.disconnect import EXTENSION, OnDisconnect
from .body import ClientGone

T = TypeVar("T")


def never(_: Callable[[], object] | None, /) -> None:
    """The `Watch` of a request that no client waits for."""


async def cancel_on_disconnect(on_disconnect: OnDisconnect, work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to; it is cancelled when the client leaves. The request's body has been read.

    Raises ClientGone.
    """
    task = asyncio.get_running_loop().create_task(work)
    is_disconnected = False

    def cancel() -> None:
        nonlocal is_disconnected
        is_disconnected = task.cancel()

    on_disconnect(cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if is_disconnected:
            raise ClientGone from None
        raise
    finally:
        on_disconnect(None)


async def with_disconnect_events(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The application under a server without the extension, as if it had it."""
    watcher = _DisconnectWatcher(receive)
    extensions: dict[str, object] = scope.get("extensions") or {}
    try:
        await app({**scope, "extensions": {**extensions, EXTENSION: watcher.on_disconnect}}, receive, send)
    finally:
        await watcher.close()


class _DisconnectWatcher:
    """The extension, by a task that waits in `receive`: whoever watches has read the body."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._callback: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None

    def on_disconnect(self, callback: Callable[[], object] | None, /) -> None:
        """As `http.leaving.Watch`."""
        self._callback = callback
        if callback is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        # A client that has left is told of as often as anybody asks.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    async def close(self) -> None:
        """Nothing outlives its request."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
