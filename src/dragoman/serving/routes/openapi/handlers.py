"""`/openapi.json` and `/docs`: the description of the API, and a page that shows it.

The page is static and public; it contains nothing of this server, and asks for the description with the visitor's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from ...auth import Access
from ...endpoint import JSON, CompleteResponse, Handler, HttpRequest, Route
from ...envelopes import OPENAI
from .document import describe_api

PAGE_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The page's Content-Security-Policy: no inline script or style, and nothing of another host."""
VIEWER = Path(__file__).with_name("viewer")
ICON = Path(__file__).parents[3] / "ui" / "icon.svg"
_FILES = (
    ("/docs", VIEWER / "index.html", b"text/html; charset=utf-8"),
    ("/docs/viewer.js", VIEWER / "viewer.js", b"text/javascript; charset=utf-8"),
    ("/docs/viewer.css", VIEWER / "viewer.css", b"text/css; charset=utf-8"),
    # Without an icon browsers ask for /favicon.ico, and log that there is none.
    ("/docs/icon.svg", ICON, b"image/svg+xml"),
)


def build_routes(routes: Iterable[Route]) -> Sequence[Route]:
    """routes: all others, which the description includes."""
    own = [Route(path, Access.PUBLIC, OPENAI, {"GET": _build_file_handler(file, type)}) for path, file, type in _FILES]
    description = ApiDescription()
    own.append(Route("/openapi.json", Access.USER, OPENAI, {"GET": description.show}))
    description.routes = (*routes, *own)
    return own


class ApiDescription:
    """The documents, each built once and kept: with the routes for administrators, and without them."""

    def __init__(self) -> None:
        self.routes: tuple[Route, ...] = ()
        self._documents: dict[bool, bytes] = {}
        self._lock = anyio.Lock()

    async def show(self, http: HttpRequest) -> CompleteResponse:
        """Return the document of the routes that the caller's key may use."""
        options = http.service.options
        requires_key = bool(options.api_keys or options.admin_keys)
        is_admin = http.caller.is_admin or not requires_key
        async with self._lock:
            if is_admin not in self._documents:
                # In a thread: it takes as long as hundreds of requests.
                self._documents[is_admin] = await anyio.to_thread.run_sync(
                    lambda: describe_api(self.routes, requires_key=requires_key, is_admin=is_admin)
                )
        return build_cached_response(http, self._documents[is_admin], JSON[1])


def build_cached_response(
    http: HttpRequest, body: bytes, content_type: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> CompleteResponse:
    """Return the body with its ETag, or 304 without it for a client that has it (RFC 9110, 13.1.2)."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    known = [each.strip().removeprefix("W/") for each in http.headers.get("if-none-match", "").split(",")]
    all_headers = [
        *http.build_headers((b"content-type", content_type)),
        (b"etag", tag.encode()),
        # With revalidation, since an update of the server changes it.
        (b"cache-control", b"no-cache"),
        (b"x-content-type-options", b"nosniff"),
        *headers,
    ]
    if tag in known or "*" in known:
        return CompleteResponse(304, all_headers, b"", len(body))
    return CompleteResponse(200, all_headers, body, len(body))


def _build_file_handler(file: Path, content_type: bytes) -> Handler:
    body = file.read_bytes()
    headers = ((b"content-security-policy", PAGE_POLICY.encode()), (b"referrer-policy", b"no-referrer"))

    async def show(http: HttpRequest) -> CompleteResponse:
        return build_cached_response(http, body, content_type, headers)

    return show
