"""Which web pages' scripts may talk to this server: the words of CORS.

By default none may: a page that somebody opens must not find the model on their machine. A script that may sends its
key itself; nothing here lets a browser send one by itself, so that `*` gives nobody another's rights.
https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers

from ..core.errors import PermissionDenied
from .streaming import RawHeaders

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,]+|null|\*")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_MAX_HEADER_NAMES = 4096
"""Characters of the names of headers that a script wants to send."""
_EXPOSED_HEADERS = b"x-request-id, request-id, retry-after, x-dragoman-warnings, openai-processing-ms, openai-version"
"""What a script may read besides what all may."""
_MAX_AGE = b"7200"
"""How long a browser may remember what it was told beforehand: the longest that any of them does."""


_OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for requests that no other page has made; `none` is the user's own doing."""


class CorsPolicy:
    """allowed: as a browser writes them (`https://app.example`, `http://localhost:3000`, `null`), or `*` for all."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """Raises ValueError for what no browser would send."""
        for origin in allowed:
            if not _ORIGIN.fullmatch(origin.lower()):
                raise ValueError(f"an origin is SCHEME://HOST[:PORT] without a path, or *; not {origin}")
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def build_headers(self, headers: Headers) -> RawHeaders:
        """What an answer to this request says of it."""
        if not self._allowed:
            return []
        if "*" in self._allowed:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED_HEADERS)]
        origin, vary = self._find_allowed_origin(headers), (b"vary", b"origin")
        if origin is None:
            return [vary]
        allow = (b"access-control-allow-origin", origin.encode())
        return [vary, allow, (b"access-control-expose-headers", _EXPOSED_HEADERS)]

    def build_preflight_headers(self, method: str, headers: Headers, methods: Iterable[str]) -> RawHeaders | None:
        """What a browser is told that asks before it sends a script's request. methods: those of the path.

        None for any other request, and for one from a page that may not.
        """
        if method != "OPTIONS" or "access-control-request-method" not in headers or not self._lets(headers):
            return None
        response_headers = [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-max-age", _MAX_AGE),
        ]
        names = headers.get("access-control-request-headers", "").strip()
        if len(names) <= _MAX_HEADER_NAMES and _HEADER_NAMES.fullmatch(names):
            response_headers.append((b"access-control-allow-headers", names.encode()))
        if headers.get("access-control-request-private-network") == "true":
            response_headers.append((b"access-control-allow-private-network", b"true"))
        return response_headers

    def check_origin(self, headers: Headers, *, by_name: bool, allow_navigation: bool = False) -> None:
        """Raise NotPermitted for a request that a page of another origin makes.

        Browsers send many of them without asking first: a WebSocket handshake, a form, a POST of a `Blob` without a
        type, an `<img>`. Of these the last has no Origin, but Sec-Fetch-Site. `same-site` is another origin too: all
        ports of localhost are one site. Clients that are no browsers send neither header.
        https://www.w3.org/TR/fetch-metadata/

        named: the origin must be allowed by its name, and not by `*`. allow_navigation: a link to here may be followed
        from anywhere; the page that has it cannot read the answer.
        """
        if "*" in self._allowed and not by_name:
            return
        origins = headers.getlist("origin")
        if not all(self._is_allowed(origin.lower(), headers) for origin in origins):
            raise _foreign()
        if origins or all(site in _OWN_SITES for site in headers.getlist("sec-fetch-site")):
            return
        is_navigation = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if not (allow_navigation and is_navigation):
            raise _foreign()

    def _is_allowed(self, origin: str, headers: Headers) -> bool:
        return origin in self._allowed or origin.partition("://")[2] == headers.get("host", "").lower()

    def _lets(self, headers: Headers) -> bool:
        return "*" in self._allowed or self._find_allowed_origin(headers) is not None

    def _find_allowed_origin(self, headers: Headers) -> str | None:
        """The one that asks, if it is allowed by name."""
        origins = headers.getlist("origin")
        return origins[0] if len(origins) == 1 and origins[0].lower() in self._allowed else None


def _foreign() -> PermissionDenied:
    return PermissionDenied("Pages of other origins may not send requests to this server. See --allowed-origins.")
