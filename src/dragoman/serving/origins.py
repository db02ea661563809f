"""Which web pages' scripts may talk to this server: the words of CORS.

By default none may: a page that somebody opens must not find the model on their machine. A script that may sends its
key itself; nothing here lets a browser send one by itself, so that `*` gives nobody another's rights.
https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers

from ..core.errors import NotPermitted
from .answer import RawHeaders

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,]+|null|\*")
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_MOST = 4096
"""Characters of the names of headers that a script wants to send."""
_EXPOSED = b"x-request-id, request-id, retry-after, x-dragoman-warnings, openai-processing-ms, openai-version"
"""What a script may read besides what all may."""
_SECONDS = b"7200"
"""How long a browser may remember what it was told beforehand: the longest that any of them does."""


class Origins:
    """allowed: as a browser writes them (`https://app.example`, `http://localhost:3000`, `null`), or `*` for all."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """Raises ValueError for what no browser would send."""
        for origin in allowed:
            if not _ORIGIN.fullmatch(origin.lower()):
                raise ValueError(f"an origin is SCHEME://HOST[:PORT] without a path, or *; not {origin}")
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def head(self, headers: Headers) -> RawHeaders:
        """What an answer to this request says of it."""
        if not self._allowed:
            return []
        if "*" in self._allowed:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        origin, vary = self._origin(headers), (b"vary", b"origin")
        if origin is None:
            return [vary]
        allow = (b"access-control-allow-origin", origin.encode())
        return [vary, allow, (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, method: str, headers: Headers, methods: Iterable[str]) -> RawHeaders | None:
        """What a browser is told that asks before it sends a script's request. methods: those of the path.

        None for any other request, and for one from a page that may not.
        """
        if method != "OPTIONS" or "access-control-request-method" not in headers or not self._lets(headers):
            return None
        told = [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-max-age", _SECONDS),
        ]
        names = headers.get("access-control-request-headers", "").strip()
        if len(names) <= _MOST and _NAMES.fullmatch(names):
            told.append((b"access-control-allow-headers", names.encode()))
        if headers.get("access-control-request-private-network") == "true":
            told.append((b"access-control-allow-private-network", b"true"))
        return told

    def check(self, headers: Headers, *, named: bool) -> None:
        """Raise NotPermitted for a page of another site: browsers let any page open a WebSocket to anywhere, and send
        a POST without a body. named: it must be allowed by its name, and not by `*`.
        """
        host = headers.get("host", "").lower()
        for origin in headers.getlist("origin"):
            allowed = origin.lower() in self._allowed or ("*" in self._allowed and not named)
            if not allowed and origin.lower().partition("://")[2] != host:
                raise NotPermitted("Cross-origin requests are not allowed. See --allowed-origins.")

    def _lets(self, headers: Headers) -> bool:
        return "*" in self._allowed or self._origin(headers) is not None

    def _origin(self, headers: Headers) -> str | None:
        """The one that asks, if it is allowed by name."""
        given = headers.getlist("origin")
        return given[0] if len(given) == 1 and given[0].lower() in self._allowed else None
