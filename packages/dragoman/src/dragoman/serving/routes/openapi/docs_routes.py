"""The routes of the OpenAPI document: `/openapi.json`, with the page at `/docs`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ....dialects.openai_errors import OPENAI_ERRORS
from ...api_description import JSON, ApiResponse, response
from ...auth import Access
from ...handler_result import CompleteResponse
from ...http_request import HttpRequest
from ...route import Route, RouteGroup
from .document import build_cached_response, describe_api

PAGE_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The page's Content-Security-Policy: no inline scripts or styles, and nothing from
other hosts.
"""


VIEWER = Path(__file__).with_name("viewer")


ICON = Path(__file__).parents[3] / "ui" / "icon.svg"


_FILES = (
    ("/docs", "Show the API in a browser", VIEWER / "index.html", "text/html; charset=utf-8"),
    (
        "/docs/viewer.js",
        "Read the page's program",
        VIEWER / "viewer.js",
        "text/javascript; charset=utf-8",
    ),
    ("/docs/viewer.css", "Read the page's style", VIEWER / "viewer.css", "text/css; charset=utf-8"),
    # Without an icon browsers request /favicon.ico and log a 404.
    ("/docs/icon.svg", "Read the page's icon", ICON, "image/svg+xml"),
)


def build_routes(routes: Iterable[Route]) -> Sequence[Route]:
    """Build the routes that serve the document and its page.

    routes: all other routes; the document describes them too.
    """
    group = RouteGroup("Server", OPENAI_ERRORS)
    for path, summary, file, content_type in _FILES:
        group.add(
            "GET",
            path,
            partial(show_file, file.read_bytes(), content_type.encode()),
            summary,
            ApiResponse(media=content_type.partition(";")[0]),
            is_cached=True,
            access=Access.PUBLIC,
        )
    description = ApiDescription()
    group.add(
        "GET",
        "/openapi.json",
        description.show,
        "Describe the API",
        response(dict[str, Any]),
        is_cached=True,
    )
    document_routes = group.build()
    description.routes = (*routes, *document_routes)
    return document_routes


class ApiDescription:
    """Serves the document in two versions, with and without the routes for
    administrators. Each is built once.
    """

    def __init__(self) -> None:
        self.routes: tuple[Route, ...] = ()
        self._documents: dict[bool, bytes] = {}
        self._lock = anyio.Lock()

    async def show(self, http: HttpRequest) -> CompleteResponse:
        """Return the document of the routes that the caller's key may use."""
        requires_key = not http.service.tenancy.keyring.is_open
        is_admin = http.caller.is_admin or not requires_key
        async with self._lock:
            if is_admin not in self._documents:
                # In a thread, because building takes as long as hundreds of requests.
                self._documents[is_admin] = await anyio.to_thread.run_sync(
                    lambda: describe_api(self.routes, requires_key=requires_key, is_admin=is_admin)
                )
        return build_cached_response(http, self._documents[is_admin], JSON.encode())


async def show_file(body: bytes, content_type: bytes, http: HttpRequest) -> CompleteResponse:
    """Return a file of the page that shows the API."""
    headers = (
        (b"content-security-policy", PAGE_POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
    )
    return build_cached_response(http, body, content_type, headers)
