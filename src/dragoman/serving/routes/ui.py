"""The web page at /ui: files of this package, kept in memory. All that the page shows comes from other routes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

from ...core.errors import NotFound
from ..auth import Access
from ..endpoint import CompleteResponse, HttpRequest, JsonResponse, Route
from ..envelopes import OPENAI
from ..streaming import Responder

INDEX = "index.html"
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
"""Scripts, styles, images and connections are this server's alone. Trusted Types (https://www.w3.org/TR/trusted-types/)
make every assignment of markup, such as innerHTML, an error: the page shows text only.
"""
SECURITY_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    # For browsers without `frame-ancestors`.
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page. etag: a digest of its content, in quotes."""

    content: bytes
    content_type: tuple[bytes, bytes]
    etag: str


def load_page_files() -> Mapping[str, PageFile]:
    """Load the files of the page by name."""
    folder = files("dragoman").joinpath("ui")
    contents = {
        entry.name: (entry.read_bytes(), content_type)
        for entry in folder.iterdir()
        for suffix, content_type in _CONTENT_TYPES.items()
        if entry.name.endswith(suffix)
    }
    return {
        name: PageFile(content, (b"content-type", content_type), f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        for name, (content, content_type) in contents.items()
    }


def build_routes(*, is_enabled: bool) -> Sequence[Route]:
    """Public: the page has no secrets, and browsers send no key when they open an address.

    Where it is disabled its paths are like unknown ones, which reveal nothing without a key.
    """
    page_files: Mapping[str, PageFile] = load_page_files() if is_enabled else {}
    access, show_file = Access.PUBLIC if is_enabled else Access.USER, partial(send_file, page_files)
    return (
        Route("/ui", access, OPENAI, {"GET": show_file}),
        Route("/ui/", access, OPENAI, {"GET": redirect_to_page if is_enabled else show_file}),
        Route("/ui/{file}", access, OPENAI, {"GET": show_file}),
    )


async def send_file(page_files: Mapping[str, PageFile], http: HttpRequest) -> CompleteResponse | JsonResponse:
    """Send a file, or 304 if the browser has it. Browsers always ask: a new version of the server is a new page."""
    file = page_files.get(http.path_params.get("file", INDEX))
    if file is None:
        message = "There is no such file." if page_files else "The page is disabled on this server (--ui)."
        raise NotFound(message, code="unsupported_endpoint")
    headers = ((b"etag", file.etag.encode()), (b"cache-control", b"no-cache"), *SECURITY_HEADERS)
    known_etags = [tag.strip().removeprefix("W/") for tag in http.headers.get("if-none-match", "").split(",")]
    if file.etag in known_etags:
        return CompleteResponse(304, [*http.build_headers(file.content_type), *headers], b"", len(file.content))
    return JsonResponse(file.content, content_type=file.content_type, headers=headers)


async def redirect_to_page(http: HttpRequest) -> JsonResponse | Responder:
    """Redirect from `/` and `/ui/`. The location is relative: a mounting application or a proxy may add a prefix."""
    location = b"../ui" if http.path.endswith("/ui/") else b"ui"
    headers = ((b"location", location), (b"vary", b"accept"), *SECURITY_HEADERS)
    return JsonResponse(b"", 307, (b"content-type", b"text/plain; charset=utf-8"), headers=headers)
