"""An ASGI extension: a callback when the client disconnects, without a task that waits in `receive`.

    on_disconnect = find_on_disconnect(scope)  # None if the server lacks it: wait for `http.disconnect` instead
    if on_disconnect is not None:
        on_disconnect(callback)

The extension is `scope["extensions"]["dragoman.leaving"]`, for HTTP requests. It belongs to one request and can be held
without the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

EXTENSION = "dragoman.leaving"


class OnDisconnect(Protocol):
    """The value of a request's scope under `EXTENSION`."""

    def __call__(self, callback: Callable[[], object] | None, /) -> None:
        """Call `callback` when the client disconnects before the response is complete; None removes the callback.

        Only the last callback is registered. It is called once, without arguments, in its own iteration of the event
        loop, never from within this call or `send`. If the client has already disconnected, it is called in the next
        iteration. After the response is complete, or after removal, it is not called.
        """
        ...


def find_on_disconnect(scope: Mapping[str, Any]) -> OnDisconnect | None:
    """Return the server's extension, or None if it has none."""
    extensions: Mapping[str, OnDisconnect] = scope.get("extensions") or {}
    return extensions.get(EXTENSION)
