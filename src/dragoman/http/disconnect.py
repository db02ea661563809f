"""An ASGI extension: the server tells that a client has left, without a task that waits in `receive` for it.

    watch = watch_of(scope)  # None under a server that does not have it: wait for `http.disconnect` there
    if watch is not None:
        watch(callback)

It is `scope["extensions"]["dragoman.leaving"]`, for requests over HTTP. Like all that is in a scope it belongs to one
request; whoever keeps it need not keep the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

EXTENSION = "dragoman.leaving"


class OnDisconnect(Protocol):
    """What a request's scope holds under `EXTENSION`."""

    def __call__(self, callback: Callable[[], object] | None, /) -> None:
        """Have it called when the client has left before the response was complete; None: no more.

        There is one at a time, the last that was given. It is called once, without arguments, on the event loop, in a
        turn of its own: never from within this call nor from within `send`. A client that has left already is told of
        in the next turn. Once the response is complete, or nobody watches any more, it is not called.
        """
        ...


def find_on_disconnect(scope: Mapping[str, Any]) -> OnDisconnect | None:
    """The server's, if it has it."""
    extensions: Mapping[str, OnDisconnect] = scope.get("extensions") or {}
    return extensions.get(EXTENSION)
