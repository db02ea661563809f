"""ASGI extensions of the server, by which an application avoids waiting.

With the callback, no task has to wait in `receive`:

    on_disconnect = find_on_disconnect(scope)  # None if the server lacks it: wait for `http.disconnect` instead
    if on_disconnect is not None:
        on_disconnect(callback)

Both are in `scope["extensions"]` of HTTP requests, under their names below. The
callback belongs to one request and can be held without the scope.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

DISCONNECT_EXTENSION = "dragoman.disconnect"
DIRECT_WRITE_EXTENSION = "dragoman.direct_write"


class OnDisconnect(Protocol):
    """The value of a request's scope under `DISCONNECT_EXTENSION`."""

    def __call__(self, callback: Callable[[], object] | None, /) -> None:
        """Call `callback` when the client disconnects before the response is complete;
        None removes the callback.

        Only the last callback is registered. It is called once, without arguments, in
        its own iteration of the event loop, never from within this call or `send`. If
        the client has already disconnected, it is called in the next iteration. After
        the response is complete, or after removal, it is not called.
        """
        ...


def find_on_disconnect(scope: Mapping[str, Any]) -> OnDisconnect | None:
    """Return the server's extension, or None if it has none."""
    extensions: Mapping[str, OnDisconnect] = scope.get("extensions") or {}
    return extensions.get(DISCONNECT_EXTENSION)


class DirectResponse(Protocol):
    """The value of a request's scope under `DIRECT_WRITE_EXTENSION`."""

    @property
    def can_write(self) -> bool:
        """Whether the response has started, is not complete, and the client reads fast
        enough for more.
        """
        ...

    def write(self, body: bytes) -> None:
        """Write a piece of the body that is not the last one. May be called only while
        `can_write` is true.
        """
        ...

    def hold(self, body: bytes) -> None:
        """As `write`, but together with the next piece, or at the next `flush`."""
        ...

    def flush(self) -> None:
        """Write what `begin` and `hold` have held back, if it is not yet written."""
        ...

    @property
    def can_respond(self) -> bool:
        """Whether nothing of the response has been sent, and the client is connected
        and reads fast enough.
        """
        ...

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the headers together with the first piece of the body, or at the next
        `flush`. May be called only while `can_respond` is true.

        Raises:
            RuntimeError: the headers are invalid.
        """
        ...

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole response, whose headers have a Content-Length. May be called
        only while `can_respond` is true.

        Raises:
            RuntimeError: the response is invalid.
        """
        ...


def find_direct_response(scope: Mapping[str, Any], send: object) -> DirectResponse | None:
    """Return the server's extension, or None if it has none, or if `send` is not its own
    method: what is written directly would pass by a middleware that has wrapped `send`.
    """
    extensions: Mapping[str, DirectResponse] = scope.get("extensions") or {}
    direct = extensions.get(DIRECT_WRITE_EXTENSION)
    return direct if getattr(send, "__self__", None) is direct else None
