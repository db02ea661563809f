"""Cross-origin requests (CORS): which web pages may call this server.

By default no page's script can call this server: a page that a user opens must not
reach the model on their machine. An allowed script sends its API key itself. The server
uses no credentials that browsers attach automatically, so `*` grants no access to
another user's data.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers

from ..core.errors import PermissionDenied
from .responder import RawHeaders

# An origin in the form that browsers send, or `*`.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,]+|null|\*")
# A comma-separated list of tokens, the names of headers (RFC 9110, 5.6.2).
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_MAX_HEADER_NAMES = 4096
"""Maximum characters of Access-Control-Request-Headers."""
_EXPOSED_HEADERS = (
    b"x-request-id, request-id, retry-after, x-dragoman-warnings, "
    b"openai-processing-ms, openai-version"
)
"""Response headers that a script can read in addition to the safelisted ones."""
_MAX_AGE = b"7200"
"""Seconds for which a browser may cache a preflight: 2 hours is the maximum in
Chromium.
"""


_OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site without another origin; `none` is a navigation by the user.
"""


class CorsPolicy:
    """The allowed origins.

    allowed: in the browser's form (`https://app.example`, `http://localhost:3000`,
        `null`), or `*` for all.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """Raise ValueError if an origin has a form that no browser sends."""
        for origin in allowed:
            if not _ORIGIN.fullmatch(origin.lower()):
                raise ValueError(
                    f"an origin is SCHEME://HOST[:PORT] without a path, or *; not {origin}"
                )
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def build_headers(self, headers: Headers) -> RawHeaders:
        """Return the CORS headers of the response to this request."""
        if not self._allowed:
            return []
        if "*" in self._allowed:
            # No `Vary`: the response is the same for all origins, so caches may share
            # it.
            return [
                (b"access-control-allow-origin", b"*"),
                (b"access-control-expose-headers", _EXPOSED_HEADERS),
            ]
        origin = self._find_allowed_origin(headers)
        vary = (b"vary", b"origin")
        if origin is None:
            # Caches must not give this response to an allowed origin.
            return [vary]
        allow = (b"access-control-allow-origin", origin.encode())
        return [vary, allow, (b"access-control-expose-headers", _EXPOSED_HEADERS)]

    def build_preflight_headers(
        self, method: str, headers: Headers, methods: Iterable[str]
    ) -> RawHeaders | None:
        """Return the headers of a preflight's response.

        None for any other request, and for a preflight from an origin that is not
        allowed.

        methods: the methods that the path supports.
        """
        if method != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        if "*" not in self._allowed and self._find_allowed_origin(headers) is None:
            return None
        response_headers = [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-max-age", _MAX_AGE),
        ]
        names = headers.get("access-control-request-headers", "").strip()
        # Only well-formed names are echoed, since they become a header of the response.
        if len(names) <= _MAX_HEADER_NAMES and _HEADER_NAMES.fullmatch(names):
            response_headers.append((b"access-control-allow-headers", names.encode()))
        # Chromium asks before a public page reaches a private address.
        # https://wicg.github.io/private-network-access/
        if headers.get("access-control-request-private-network") == "true":
            response_headers.append((b"access-control-allow-private-network", b"true"))
        return response_headers

    def check_origin(
        self, headers: Headers, *, by_name: bool, allow_navigation: bool = False
    ) -> None:
        """Reject requests that pages of other origins cause.

        Browsers send many of these without a preflight: a WebSocket handshake, a form,
        a POST of a `Blob` without a type, an `<img>`. The last has no Origin, but
        Sec-Fetch-Site. `same-site` counts as another origin: all ports of localhost are
        one site. Clients that are not browsers send neither header.
        https://www.w3.org/TR/fetch-metadata/

        by_name: the origin must be listed explicitly; `*` is not sufficient.
        allow_navigation: allow links from other origins, whose pages cannot read the
            response.

        Raises:
            PermissionDenied: the request comes from an origin that is not allowed.
        """
        # Clients that are not browsers, nearly all, need no further look.
        if headers.get("origin") is None and headers.get("sec-fetch-site") is None:
            return
        if "*" in self._allowed and not by_name:
            return
        origins = headers.getlist("origin")
        # Pages of this server itself are allowed: their origin is the request's host.
        own_host = headers.get("host", "").lower()
        for origin in map(str.lower, origins):
            if origin not in self._allowed and origin.partition("://")[2] != own_host:
                raise _build_foreign_origin_error()
        sites = headers.getlist("sec-fetch-site")
        if origins or not sites or all(site in _OWN_SITES for site in sites):
            return
        # Loading an iframe is a navigation too, but with another destination.
        is_navigation = (
            headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        if not (allow_navigation and is_navigation):
            raise _build_foreign_origin_error()

    def _find_allowed_origin(self, headers: Headers) -> str | None:
        """Return the request's origin if it is listed explicitly."""
        origins = headers.getlist("origin")
        return origins[0] if len(origins) == 1 and origins[0].lower() in self._allowed else None


def _build_foreign_origin_error() -> PermissionDenied:
    return PermissionDenied(
        "Pages of other origins may not send requests to this server. See --allowed-origins."
    )
