"""An HTTP request as a handler sees it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from math import ceil

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope

from ..core.errors import (
    DragomanError,
    MethodNotAllowed,
    UnsupportedMediaType,
)
from ..dialects.error_envelope import ErrorEnvelope
from ..dialects.field_errors import abbreviate
from ..dialects.interfaces import Profile
from ..http.asgi_extensions import OnDisconnect
from .auth import ANONYMOUS, Caller
from .body_memory import BodyMemoryShare
from .client_warnings import render_warnings
from .request_body import read_body
from .request_context import RequestHeaders, RequestRecord, TrackedQuery
from .responder import RawHeaders, ResponseStart
from .service import Service

# Client-supplied request ids that are safe in logs and headers.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


WARNINGS_HEADER = "x-dragoman-warnings"
"""In a response, the header with the warnings; in a request, the value `body` asks for
them in the body too.
"""


JSON_CONTENT_TYPE: tuple[bytes, bytes] = (b"content-type", b"application/json")


_IGNORED_QUERY_PARAMS = frozenset({"beta", "api-version"})
"""Query parameters that the SDKs of Anthropic and Azure add to every URL."""


_FIELD_MASK = "x-goog-fieldmask"
"""The header that asks for a part of an answer, as Google's parameter `fields` does."""
_MAX_UNREAD = 16


class HttpRequest(msgspec.Struct):
    """An HTTP request as a handler sees it.

    service, caller: of everybody until the caller is authenticated.
    started_at: arrival, seconds on the monotonic clock.
    envelope: the format of its errors.
    on_disconnect: registers a callback for the client's disconnect.
    body_memory: the body's share of the memory budget.
    client: the client's host and port; None if unknown.
    record: mutable state, shared by all copies of this request.
    http_version: such as `1.1`.
    """

    service: Service
    caller: Caller
    headers: Headers
    path_params: Mapping[str, str]
    id: str
    started_at: float
    envelope: ErrorEnvelope
    receive: Receive
    on_disconnect: OnDisconnect
    query_string: bytes
    path: str
    body_memory: BodyMemoryShare
    client: tuple[str, int] | None = None
    record: RequestRecord = msgspec.field(default_factory=RequestRecord)
    http_version: str = "1.1"

    @property
    def client_host(self) -> str | None:
        return self.client[0] if self.client is not None and self.client[0] else None

    @property
    def query(self) -> TrackedQuery:
        read = self.record.read_query
        if read is None:
            read = self.record.read_query = set[str]()
        return TrackedQuery(self.query_string, read)

    def describe_unread_query(self) -> tuple[str, ...]:
        """Return warnings for query parameters that the handler did not read, and for
        headers that say the same.
        """
        ignored: tuple[str, ...] = ()
        if self.headers.get(_FIELD_MASK) is not None:
            ignored = (f"{_FIELD_MASK!r} is ignored: answers have all fields",)
        if not self.query_string:
            return ignored
        read = self.record.read_query or frozenset[str]()
        unread = sorted(QueryParams(self.query_string).keys() - read - _IGNORED_QUERY_PARAMS)
        return ignored + tuple(
            f"{abbreviate(name)} is ignored: unknown query parameter"
            for name in unread[:_MAX_UNREAD]
        )

    async def read_json(self, *, allow_untyped: bool = False) -> bytes:
        """Read the JSON body of a POST.

        A content type other than JSON is rejected: browsers send `application/json`
        across origins only after a preflight, but other types without one. An empty
        body needs no content type.

        allow_untyped: accept a body without a content type, as some clients of a
            dialect send it, and without `Origin` also curl's default,
            `application/x-www-form-urlencoded`. A web page's request with such a body
            is rejected only by the check of `Origin`, which browsers send with every
            POST.
        """
        content_type = self.headers.get("content-type", "")
        if content_type != "application/json":
            self._check_content_type(content_type, allow_untyped=allow_untyped)
        body = await read_body(
            self.receive, self.headers, self.service.options.max_body_bytes, self.body_memory
        )
        self.record.body_received_at = asyncio.get_running_loop().time()
        return body

    def _check_content_type(self, content_type: str, *, allow_untyped: bool) -> None:
        media_type = content_type.partition(";")[0].strip().lower()
        # RFC 6839: `+json` is the suffix of types whose syntax is JSON.
        if media_type == "application/json" or media_type.endswith("+json"):
            return
        if (
            allow_untyped
            and media_type == "application/x-www-form-urlencoded"
            and "origin" not in self.headers
        ):
            media_type = ""
        find = self.headers.get
        has_body = read_length(find("content-length")) > 0 or "transfer-encoding" in self.headers
        if media_type or (has_body and not allow_untyped):
            raise UnsupportedMediaType("Send the body as `Content-Type: application/json`.")

    def build_headers(
        self, content_type: tuple[bytes, bytes] = JSON_CONTENT_TYPE, warnings: Sequence[str] = ()
    ) -> RawHeaders:
        """Build the headers of this request's response."""
        elapsed = (self.service.clock.monotonic() - self.started_at) * 1000
        id = self.id.encode()
        headers = [
            content_type,
            (b"x-request-id", id),
            # Anthropic's SDK reads `request-id`, OpenAI's `x-request-id`.
            (b"request-id", id),
            (b"openai-processing-ms", str(round(elapsed)).encode()),
            (b"openai-version", b"2020-10-01"),
        ]
        # Without keys there are none.
        limits = self.record.owner and self.service.tenancy.read_limits(self.record.owner)
        if limits:
            headers += self.envelope.render_rate_limits(limits, self.service.clock.now())
        if warnings:
            headers.append(render_warnings_header(warnings))
        headers += self.service.options.cors.build_headers(self.headers)
        if self.service.models.is_closed:
            # During shutdown, clients should reconnect to another server.
            headers.append((b"connection", b"close"))
        return headers

    @property
    def wants_warnings_in_body(self) -> bool:
        """Whether the client asked for warnings in the body, as those do that do not
        show headers; the `vllm` API profile always includes them.
        """
        is_requested = self.headers.get(WARNINGS_HEADER, "").strip().lower() == "body"
        return is_requested or self.service.options.profile is Profile.VLLM

    def render_warnings(self, warnings: Sequence[str]) -> bytes:
        """Render warnings as a JSON array for the body. Empty if there are none, or if
        the client does not want them there.
        """
        return render_warnings(warnings) if warnings and self.wants_warnings_in_body else b""

    def build_response_start(
        self, headers: RawHeaders, max_wait: float | None = None
    ) -> ResponseStart:
        """Build the start of a streamed response.

        max_wait: seconds after which the headers are sent; None means the limit for
            requests that may still be rejected.
        """
        return ResponseStart(
            headers,
            self.service.options.timeouts.headers if max_wait is None else max_wait,
            self.render_error,
        )

    def render_error(self, error: DragomanError) -> tuple[int, RawHeaders, bytes]:
        headers = self.build_headers()
        if error.retry_after is not None:
            # At least 1, because SDKs would retry at once after 0. Rounded up: an
            # earlier retry would be rejected too.
            headers.append((b"retry-after", str(max(1, ceil(error.retry_after))).encode()))
        if not error.should_retry:
            # Otherwise OpenAI's and Anthropic's SDKs would retry the 429 or 500.
            headers.append((b"x-should-retry", b"false"))
        if error.status == 401:
            # RFC 9110, 11.6.1: a 401 must have a challenge.
            headers.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, MethodNotAllowed):
            # RFC 9110, 15.5.6: a 405 must list the allowed methods.
            headers.append((b"allow", ", ".join(error.allowed).encode()))
        body = self.envelope.render(error, self.id, self.service.options.profile)
        return self.envelope.map_status(error), headers, body


def build_http_request(
    scope: Scope,
    receive: Receive,
    on_disconnect: OnDisconnect,
    service: Service,
    envelope: ErrorEnvelope,
) -> HttpRequest:
    """Build the request before authentication, with an anonymous caller."""
    headers = RequestHeaders(scope)
    id = headers.get("x-request-id")
    # The id appears in logs and headers, so a client's id is used only if it has plain
    # characters.
    if id is None or _PLAIN_ID.fullmatch(id) is None:
        id = service.ids.new("req_")
    started_at = service.clock.monotonic()
    path = scope["path"]
    client = scope.get("client")
    return HttpRequest(
        service,
        ANONYMOUS,
        headers,
        scope.get("path_params", {}),
        id,
        started_at,
        envelope.resolve(headers) if envelope.clients else envelope,
        receive,
        on_disconnect,
        scope.get("query_string", b""),
        path,
        BodyMemoryShare(service.body_budget),
        client,
        RequestRecord(id, started_at, path, client, read_length(headers.get("content-length"))),
        scope.get("http_version", "1.1"),
    )


def read_length(value: str | None) -> int:
    """Read a Content-Length; 0 if it is absent or no number."""
    # 19 digits hold any 64-bit length; int() of a longer text is quadratic.
    return int(value[:19]) if value is not None and value.isdecimal() else 0


def render_warnings_header(warnings: Sequence[str]) -> tuple[bytes, bytes]:
    return WARNINGS_HEADER.encode(), encode_header_text("; ".join(warnings))


def encode_header_text(text: str) -> bytes:
    """Encode text for a header: printable ASCII, at most 2048 bytes."""
    return text.encode("ascii", "replace").translate(_TO_PRINTABLE)[:2048]


_TO_PRINTABLE = bytes(byte if 32 <= byte < 127 else ord("?") for byte in range(256))
