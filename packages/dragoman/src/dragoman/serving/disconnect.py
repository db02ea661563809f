"""Detection of client disconnects, which cancels the work for the client.

Servers without the disconnect extension get a fallback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from ..http.asgi_extensions import DISCONNECT_EXTENSION, OnDisconnect

T = TypeVar("T")


def ignore_disconnect(_: Callable[[], object] | None, /) -> None:
    """The `OnDisconnect` of a request without a client: the callback is never called."""


async def cancel_on_disconnect(on_disconnect: OnDisconnect, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, cancelling it when the client disconnects. Call it
    after the body has been read, in the request's task: another one for the work would
    cost more than most work.

    Raises:
        ClientGone: the client has disconnected.
    """
    task = asyncio.current_task()
    assert task is not None
    is_disconnected = False

    def cancel() -> None:
        nonlocal is_disconnected
        is_disconnected = True
        task.cancel()

    on_disconnect(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        # Only our own cancellation ends here, as in asyncio.timeout.
        if is_disconnected and task.cancelling() == 1:
            raise ClientGone from None
        raise
    finally:
        on_disconnect(None)
        if is_disconnected:
            task.uncancel()


async def with_disconnect_events(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application with an emulated disconnect extension, for servers that lack
    it.
    """
    watcher = _DisconnectWatcher(receive)
    extensions: dict[str, object] = scope.get("extensions") or {}
    try:
        await app(
            {**scope, "extensions": {**extensions, DISCONNECT_EXTENSION: watcher.on_disconnect}},
            receive,
            send,
        )
    finally:
        await watcher.close()


class _DisconnectWatcher:
    """Emulates the extension by a task that waits in `receive`; it requires that the
    body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._callback: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None

    def on_disconnect(self, callback: Callable[[], object] | None, /) -> None:
        """Implements `OnDisconnect`."""
        self._callback = callback
        if callback is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        # After a disconnect, every call of `receive` returns `http.disconnect`.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        callback = self._callback
        self._callback = None
        if callback is not None:
            callback()

    async def close(self) -> None:
        """Cancel the task, so that it does not outlive the request."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class ClientGone(Exception):
    """Raised if the client disconnects before its request is complete."""
