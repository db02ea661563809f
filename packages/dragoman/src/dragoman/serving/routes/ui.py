"""The web page at /ui, whose files are kept in memory. All data on the page comes from
other routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ...core.errors import NotFound
from ...dialects.openai_errors import OPENAI_ERRORS
from ..api_description import ApiResponse
from ..auth import Access
from ..handler_result import CompleteResponse
from ..http_request import HttpRequest
from ..route import Route, RouteGroup
from .openapi.document import build_cached_response

INDEX = "index.html"
PAGE = Path(__file__).parents[2] / "ui"
"""The folder of the page."""
_CONTENT_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}

CONTENT_SECURITY_POLICY = (
    b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Scripts, styles, images and connections are limited to this server. Trusted Types
(https://www.w3.org/TR/trusted-types/) make every assignment of markup, such as
innerHTML, an error: the page inserts text only.
"""
SECURITY_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    # For browsers without `frame-ancestors`.
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


PageFile = tuple[bytes, bytes]
"""The content of a file, and its content type."""


def load_page_files() -> Mapping[str, PageFile]:
    """Load the files of the page by name."""
    return {
        entry.name: (entry.read_bytes(), content_type)
        for entry in PAGE.iterdir()
        for suffix, content_type in _CONTENT_TYPES.items()
        if entry.name.endswith(suffix)
    }


def build_routes(*, is_enabled: bool) -> Sequence[Route]:
    """Build the routes. They are public: the page has no secrets, and browsers send no
    key when they open an address.

    If the page is disabled, the routes behave like unknown paths, which require a key
    and reveal nothing without one.
    """
    page_files: Mapping[str, PageFile] = load_page_files() if is_enabled else {}
    access = Access.PUBLIC if is_enabled else Access.USER
    show_file = partial(send_file, page_files)
    routes = RouteGroup("Server", OPENAI_ERRORS, access)
    routes.add(
        "GET",
        "/ui",
        show_file,
        "Show the page of this server",
        ApiResponse(media="text/html"),
        is_cached=True,
    )
    routes.add(
        "GET",
        "/ui/{file}",
        show_file,
        "Read a file of the page",
        ApiResponse(media="text/html"),
        ApiResponse(media="text/javascript"),
        ApiResponse(media="text/css"),
        ApiResponse(media="image/svg+xml"),
        is_cached=True,
    )
    return routes.build()


async def send_file(page_files: Mapping[str, PageFile], http: HttpRequest) -> CompleteResponse:
    """Send a file, or 304 if the browser has it. Browsers revalidate, so a new server
    version shows its new page.
    """
    file = page_files.get(http.path_params.get("file", INDEX))
    if file is None:
        message = (
            "There is no such file."
            if page_files
            else "The page is disabled on this server (--ui)."
        )
        raise NotFound(message, code="unsupported_endpoint")
    return build_cached_response(http, *file, SECURITY_HEADERS)


async def redirect_to_page(http: HttpRequest) -> CompleteResponse:
    """Redirect to the page. The location is relative, because a mounting application or
    a proxy may add a prefix.
    """
    headers = http.build_headers((b"content-type", b"text/plain; charset=utf-8"))
    return CompleteResponse(307, [*headers, (b"location", b"ui"), (b"vary", b"accept")], b"", 0)
