"""A route's endpoint and the steps that all share: Host, CORS, authentication, method, error envelope, access log.

Pure ASGI: no middleware wraps `send`, so streamed tokens incur no overhead.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from ..core.errors import DragomanError, MethodNotAllowed, NotFound, Overloaded, UnsupportedMediaType
from ..dialects.base import Profile
from ..dialects.body import abbreviate
from ..dialects.json_encoding import escape_line_breaks, replace_surrogates
from ..http.disconnect import OnDisconnect
from ..pipeline.engine_calls import contain
from .auth import Access, Caller
from .body import BodyMemoryShare, ClientGone, read_body
from .host import check_headers
from .service import Service
from .streaming import (
    RawHeaders,
    Responder,
    ResponseOutcome,
    ResponseStart,
    add_warnings,
    wrap_unexpected_error,
)

log = logging.getLogger("dragoman.access")

_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
WARNINGS_HEADER = "x-dragoman-warnings"
"""In a response, the warnings; in a request, `body` asks for them in the body too."""
JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class ErrorEnvelope:
    """A dialect's error format.

    body: renders the body from an error and the request's id.
    status: maps an error to the dialect's HTTP status.
    """

    body: Callable[[DragomanError, str], bytes]
    status: Callable[[DragomanError], int]


EnvelopeResolver = Callable[[str, Mapping[str, str]], ErrorEnvelope]
"""Chooses the envelope from the request's path and headers."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request as a handler sees it.

    on_disconnect: registers a callback for the client's disconnect.
    client: the client's address, if it has one.
    body_memory: the body's share of the memory budget.
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

    @property
    def query(self) -> QueryParams:
        return QueryParams(self.query_string)

    @property
    def content_length(self) -> int:
        """Bytes of the body according to Content-Length; 0 if absent."""
        value = self.headers.get("content-length", "")
        return int(value[:19]) if value.isdecimal() else 0

    async def read_json(self) -> bytes:
        """Read the JSON body of a POST.

        A content type other than JSON is rejected: browsers send `application/json` across origins only after a
        preflight, but other types without one. An empty body needs no content type.
        """
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = media_type == "application/json" or media_type.endswith("+json")
        if not is_json and (media_type or self.content_length or "transfer-encoding" in self.headers):
            raise UnsupportedMediaType("Send the body as `Content-Type: application/json`.")
        return await read_body(self.receive, self.headers, self.service.options.max_body_bytes, self.body_memory)

    def build_headers(self, content_type: tuple[bytes, bytes] = JSON, warnings: Sequence[str] = ()) -> RawHeaders:
        """Build the headers of this request's response."""
        elapsed = (self.service.clock.monotonic() - self.started_at) * 1000
        headers = [
            content_type,
            (b"x-request-id", self.id.encode()),
            (b"request-id", self.id.encode()),
            (b"openai-processing-ms", str(round(elapsed)).encode()),
            (b"openai-version", b"2020-10-01"),
        ]
        if warnings:
            headers.append((WARNINGS_HEADER.encode(), encode_header_text("; ".join(warnings))))
        headers += self.service.options.cors.build_headers(self.headers)
        if self.service.models.is_closed:
            # During shutdown, clients should reconnect to another server.
            headers.append((b"connection", b"close"))
        return headers

    def render_warnings(self, warnings: Sequence[str]) -> bytes:
        """Render warnings as a JSON array for the body, where clients that show no headers find them.

        Empty if there are none, or if the client has not asked for them; the `vllm` API profile always includes them.
        """
        is_wanted = self.headers.get(WARNINGS_HEADER, "").strip().lower() == "body"
        if not warnings or not (is_wanted or self.service.reader_options.profile is Profile.VLLM):
            return b""
        return escape_line_breaks(msgspec.json.encode([replace_surrogates(warning) for warning in warnings]))

    def build_response_start(self, headers: RawHeaders, max_wait: float | None = None) -> ResponseStart:
        """max_wait: seconds until headers are sent; None is the limit for requests that may still be rejected."""
        return ResponseStart(
            headers, self.service.options.timeouts.headers if max_wait is None else max_wait, self.render_error
        )

    def render_error(self, error: DragomanError) -> tuple[int, RawHeaders, bytes]:
        headers = self.build_headers()
        if error.retry_after is not None:
            headers.append((b"retry-after", str(max(1, round(error.retry_after))).encode()))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, MethodNotAllowed):
            headers.append((b"allow", ", ".join(error.allowed).encode()))
        return self.envelope.status(error), headers, self.envelope.body(error, self.id)


@dataclass(frozen=True, slots=True)
class JsonResponse:
    """A response that is complete at once. warnings: which parts of the request were ignored."""

    body: bytes
    status: int = 200
    content_type: tuple[bytes, bytes] = JSON
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvelopedError:
    """An error on a path that several dialects share, with the envelope that the body's dialect requires."""

    error: DragomanError
    envelope: ErrorEnvelope


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A fully rendered response. content_length: of the body, even if it is omitted (HEAD)."""

    status: int
    headers: RawHeaders
    body: bytes
    content_length: int
    error: DragomanError | None = None

    async def __call__(self, _: OnDisconnect, send: Send) -> ResponseOutcome:
        length_header = (b"content-length", str(self.content_length).encode())
        await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers, length_header]})
        await send({"type": "http.response.body", "body": self.body})
        return ResponseOutcome(self.status, self.content_length, self.error)


HandlerResult = JsonResponse | Responder | EnvelopedError | CompleteResponse
Handler = Callable[[HttpRequest], Awaitable[HandlerResult]]


class Endpoint:
    """One path.

    handlers: by method; HEAD is handled as GET without the body.
    resolve_envelope: chooses the error format.
    """

    def __init__(
        self,
        path: str,
        access: Access,
        handlers: Mapping[str, Handler],
        service: Service,
        resolve_envelope: EnvelopeResolver,
    ) -> None:
        self.path, self.access, self.handlers = path, access, handlers
        self._service, self._resolve_envelope = service, resolve_envelope

    def open_request(self, scope: Scope, receive: Receive, on_disconnect: OnDisconnect) -> RequestLifecycle:
        return RequestLifecycle(
            self,
            build_http_request(scope, receive, on_disconnect, self._service, self._resolve_envelope),
            scope["method"],
        )

    async def handle(self, http: HttpRequest, method: str) -> HandlerResult:
        """Check and authenticate the request, and call its handler.

        Raises:
            DragomanError: the request is rejected.
            ClientGone: the client has disconnected.
        """
        check_headers(http.headers, self._service.allowed_hosts)
        cors = self._service.options.cors
        if self.access is not Access.PUBLIC:
            is_admin = self.access is Access.ADMIN
            reads = method in ("GET", "HEAD") and not is_admin
            cors.check_origin(http.headers, by_name=is_admin, allow_navigation=reads)
        preflight_headers = cors.build_preflight_headers(method, http.headers, self.handlers)
        if preflight_headers is not None:
            return CompleteResponse(200, [*http.build_headers(), *preflight_headers], b"", 0)
        caller = self._service.keyring.authenticate(http.headers, self.access)
        handler = self.handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = (*self.handlers, *(("HEAD",) if "GET" in self.handlers else ()))
            message = f"{method} is not allowed on {self.path}; use {', '.join(self.handlers)}."
            raise MethodNotAllowed(message, allowed=allowed)
        try:
            return await handler(replace(http, caller=caller))
        finally:
            # The body is no longer needed while the response is sent.
            http.body_memory.release()

    def record_outcome(self, lifecycle: RequestLifecycle, outcome: ResponseOutcome) -> None:
        """Record metrics and the access log after a request."""
        service = self._service
        elapsed = service.clock.monotonic() - lifecycle.started_at
        service.http_metrics.record(
            lifecycle.method, self.path, outcome.status, elapsed, lifecycle.content_length, outcome.length
        )
        if service.options.access_log:
            escaped_path = lifecycle.path.encode("unicode_escape").decode()[:200]
            log.info(
                "%s %s %s %s %d %.1fms",
                show_address(lifecycle.client),
                lifecycle.id,
                lifecycle.method,
                escaped_path,
                outcome.status,
                elapsed * 1000,
            )


class RequestLifecycle:
    """A request from its arrival to the end of its response: `respond`, then `finish`.

    Once there is a response, only the data for the log and the metrics is retained.
    """

    __slots__ = ("_endpoint", "_http", "client", "content_length", "id", "method", "path", "started_at")

    def __init__(self, endpoint: Endpoint, http: HttpRequest, method: str) -> None:
        self._endpoint, self._http, self.method = endpoint, http, method
        self.id, self.path, self.started_at, self.content_length = (
            http.id,
            http.path,
            http.started_at,
            http.content_length,
        )
        self.client = http.client

    async def respond(self) -> Responder | CompleteResponse:
        """Raises ClientGone: the client has disconnected."""
        http, self._http = self._http, None
        assert http is not None
        return build_response(
            http, await call_handler(self._endpoint.handle(http, self.method)), with_body=self.method != "HEAD"
        )

    def finish(self, outcome: ResponseOutcome) -> None:
        self._endpoint.record_outcome(self, outcome)


def build_http_request(
    scope: Scope, receive: Receive, on_disconnect: OnDisconnect, service: Service, resolve_envelope: EnvelopeResolver
) -> HttpRequest:
    """Build the request before authentication, with an anonymous caller."""
    headers = Headers(scope=scope)
    return HttpRequest(
        service,
        Caller(),
        headers,
        scope.get("path_params", {}),
        _choose_request_id(headers, service),
        service.clock.monotonic(),
        resolve_envelope(scope["path"], headers),
        receive,
        on_disconnect,
        scope.get("query_string", b""),
        scope["path"],
        BodyMemoryShare(service.body_budget),
        scope.get("client"),
    )


async def call_handler(result: Awaitable[HandlerResult]) -> HandlerResult | DragomanError:
    """Return the handler's result, or the error that it raised; unexpected errors are logged and wrapped.

    Raises:
        ClientGone: the client has disconnected.
    """
    task = asyncio.current_task()
    try:
        return await result
    except DragomanError as error:
        return error
    except ClientGone:
        raise
    except BaseException as error:
        failure = contain(error, task)
        if not isinstance(failure, Exception):
            raise
        return failure if isinstance(failure, DragomanError) else wrap_unexpected_error(failure)


def build_response(
    http: HttpRequest, result: HandlerResult | DragomanError, *, with_body: bool = True
) -> Responder | CompleteResponse:
    """Build the response; errors use the dialect's envelope. with_body: false omits the body (HEAD)."""
    if isinstance(result, Responder | CompleteResponse):
        return result
    if isinstance(result, EnvelopedError):
        http, result = replace(http, envelope=result.envelope), result.error
    if isinstance(result, DragomanError):
        status, headers, error_body = http.render_error(result)
        return CompleteResponse(status, headers, error_body if with_body else b"", len(error_body), result)
    response_headers = http.build_headers(result.content_type, result.warnings)
    body = add_warnings(result.body, http.render_warnings(result.warnings))
    return CompleteResponse(result.status, response_headers, body if with_body else b"", len(body))


_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def build_not_found_endpoint(
    service: Service, resolve_envelope: EnvelopeResolver, known_paths: Sequence[str]
) -> Endpoint:
    """Build the endpoint for unknown paths. It requires a key too, so that it reveals nothing to unauthenticated
    clients.
    """

    async def raise_not_found(http: HttpRequest) -> JsonResponse:
        suggestion = _suggest_route(http.path.rstrip("/"), known_paths)
        hint = (
            "See the documentation for the available routes." if suggestion is None else f"Did you mean {suggestion}?"
        )
        raise NotFound(f"No such route: {abbreviate(http.path)}. {hint}")

    return Endpoint("*", Access.USER, dict.fromkeys(_METHODS, raise_not_found), service, resolve_envelope)


def build_not_started_endpoint(service: Service, resolve_envelope: EnvelopeResolver) -> Endpoint:
    """What answers while the application's lifespan does not run."""

    async def raise_not_started(_: HttpRequest) -> JsonResponse:
        raise Overloaded(
            "This application has not been started: its lifespan does not run. A mounted application needs "
            "`lifespan=app.lifespan` in the application that it is mounted in.",
            code="not_started",
        )

    return Endpoint("*", Access.PUBLIC, dict.fromkeys(_METHODS, raise_not_started), service, resolve_envelope)


def _suggest_route(path: str, known_paths: Sequence[str]) -> str | None:
    """Suggest a route for a wrong base URL: one that lacks `/v1`, repeats it, or contains a whole route."""
    tails = {route.removeprefix("/v1"): route for route in known_paths}
    return next(
        (
            route
            for tail, route in tails.items()
            if path == tail or path.endswith(route) or (path.endswith(tail) and path.removesuffix(tail) in known_paths)
        ),
        None,
    )


def show_address(client: tuple[str, int] | None) -> str:
    """Format a client's address for the access log; `-` over a Unix socket."""
    if client is None or not client[0]:
        return "-"
    host, port = client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_header_text(text: str) -> bytes:
    """Encode text for a header: printable ASCII, at most 2048 bytes."""
    return text.encode("ascii", "replace").translate(_UNPRINTABLE)[:2048]


_UNPRINTABLE = bytes(byte if 32 <= byte < 127 else ord("?") for byte in range(256))


def _choose_request_id(headers: Headers, service: Service) -> str:
    client_id = headers.get("x-request-id", "")
    return client_id if _PLAIN_ID.fullmatch(client_id) else service.ids.new("req_")
