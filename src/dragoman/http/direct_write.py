"""An ASGI extension: pieces of a response's body are written at once, without a coroutine.

    direct = find_direct_response(scope)  # None if the server lacks it: use `send`
    if direct is not None and direct.can_write:
        direct.write(b"...")

The extension is `scope["extensions"]["dragoman.direct_write"]`, for HTTP requests. The response is started and ended by
`send`; between the two, both may be used in turn. It exists for servers of streams, where a coroutine that is resumed
for every piece costs more than the piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

EXTENSION = "dragoman.direct_write"


class DirectResponse(Protocol):
    """The value of a request's scope under `EXTENSION`."""

    @property
    def can_write(self) -> bool:
        """Whether the response has started, is not complete, and the client reads fast enough for more."""
        ...

    def write(self, body: bytes) -> None:
        """Write a piece of the body, after which others follow. Only where `can_write` is true."""
        ...


def find_direct_response(scope: Mapping[str, Any]) -> DirectResponse | None:
    """Return the server's extension, or None if it has none."""
    extensions: Mapping[str, DirectResponse] = scope.get("extensions") or {}
    return extensions.get(EXTENSION)
