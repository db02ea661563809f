"""Routes, and the endpoint that serves each of them: Host, CORS, authentication,
method, errors, access log.

Pure ASGI: no middleware wraps `send`, so streamed tokens incur no overhead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from math import ceil

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from ..core.errors import (
    BudgetExhausted,
    DragomanError,
    MethodNotAllowed,
    NotStarted,
    UnsupportedMediaType,
)
from ..dialects.anthropic import map_anthropic_status, render_anthropic_error
from ..dialects.anthropic.batches import is_anthropic_request
from ..dialects.base import Profile
from ..dialects.body import abbreviate
from ..dialects.errors import (
    RateLimitState,
    render_anthropic_rate_limits,
    render_openai_error,
    render_openai_rate_limits,
)
from ..dialects.json_encoding import escape_line_breaks, replace_surrogates
from ..dialects.ollama import render_ollama_error
from ..dialects.responses import render_responses_error
from ..dialects.tgi import map_tgi_status, render_tgi_error
from ..http.asgi_extensions import DirectResponse, OnDisconnect
from ..pipeline.engine_calls import translate_engine_exception
from .auth import Access, AccessPolicy, Caller
from .body import BodyMemoryShare, ClientGone, read_body
from .context import RequestHeaders, RequestRecord, TrackedQuery
from .http_metrics import HttpMetrics
from .service import Service
from .streaming import (
    RawHeaders,
    ReplayResponder,
    Responder,
    ResponseOutcome,
    ResponseStart,
    add_warnings,
    wrap_unexpected_error,
)
from .tracing import ServerSpan

# Error envelopes: each dialect's format of an error response.


@dataclass(frozen=True, slots=True)
class ErrorEnvelope:
    """A dialect's error format.

    name: the name in the docs.
    render: renders the body from an error, the request's id and the server's profile.
    map_status: maps an error to the dialect's HTTP status.
    anthropic: the envelope for requests of Anthropic's clients, on paths that both
        vendors have.
    render_rate_limits: renders the headers that report the limits of a key, at a Unix
        time.
    """

    name: str
    render: Callable[[DragomanError, str, Profile], bytes]
    map_status: Callable[[DragomanError], int]
    anthropic: ErrorEnvelope | None = None
    render_rate_limits: Callable[[Sequence[RateLimitState], float], RawHeaders] = (
        render_openai_rate_limits
    )

    def resolve(self, headers: Mapping[str, str]) -> ErrorEnvelope:
        """Return the envelope for a request with these headers."""
        # Anthropic's SDKs send `anthropic-version` with every request, and OpenAI's
        # never do.
        return (
            self if self.anthropic is None or not is_anthropic_request(headers) else self.anthropic
        )


OPENAI = ErrorEnvelope(
    "OpenAI",
    lambda error, _, profile: render_openai_error(error, profile),
    lambda error: error.status,
)
RESPONSES = ErrorEnvelope(
    "Responses",
    lambda error, _, profile: render_responses_error(error, profile),
    lambda error: error.status,
)
ANTHROPIC = ErrorEnvelope(
    "Anthropic",
    lambda error, request_id, _: render_anthropic_error(error, request_id),
    map_anthropic_status,
    render_rate_limits=render_anthropic_rate_limits,
)
OLLAMA = ErrorEnvelope(
    "Ollama", lambda error, _, __: render_ollama_error(error), lambda error: error.status
)
TGI = ErrorEnvelope("TGI", lambda error, _, __: render_tgi_error(error), map_tgi_status)
BY_CLIENT = replace(OPENAI, name="OpenAI or Anthropic", anthropic=ANTHROPIC)
"""OpenAI's, or Anthropic's for requests with the header `anthropic-version`."""


# Requests and responses.

log = logging.getLogger("dragoman.access")

LOG_FIELDS = "fields"
"""The attribute of a log record that holds the fields of its line in the JSON log."""
# Client-supplied request ids that are safe in logs and headers.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
WARNINGS_HEADER = "x-dragoman-warnings"
"""In a response, the header with the warnings; in a request, the value `body` asks for
them in the body too.
"""
JSON_CONTENT_TYPE: tuple[bytes, bytes] = (b"content-type", b"application/json")
_IGNORED_QUERY_PARAMS = frozenset({"beta", "api-version"})
"""Query parameters that the SDKs of Anthropic and Azure add to every URL."""
_MAX_UNREAD = 16


class HttpRequest(msgspec.Struct, frozen=True):
    """An HTTP request as a handler sees it.

    started_at: arrival, seconds on the monotonic clock.
    envelope: the format of its errors.
    on_disconnect: registers a callback for the client's disconnect.
    body_memory: the body's share of the memory budget.
    client: the client's host and port; None if unknown.
    record: mutable state, shared by all copies of this request.
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

    @property
    def client_host(self) -> str | None:
        return self.client[0] if self.client is not None and self.client[0] else None

    @property
    def query(self) -> TrackedQuery:
        return TrackedQuery(self.query_string, self.record.read_query)

    def describe_unread_query(self) -> tuple[str, ...]:
        """Return warnings for query parameters that the handler did not read."""
        if not self.query_string:
            return ()
        unread = sorted(
            QueryParams(self.query_string).keys() - self.record.read_query - _IGNORED_QUERY_PARAMS
        )
        return tuple(
            f"{abbreviate(name)} is ignored: unknown query parameter"
            for name in unread[:_MAX_UNREAD]
        )

    @property
    def content_length(self) -> int:
        """Bytes of the body according to Content-Length; 0 if absent."""
        value = self.headers.get("content-length", "")
        # 19 digits hold any 64-bit length; int() of a longer text is quadratic.
        return int(value[:19]) if value.isdecimal() else 0

    @property
    def _has_body(self) -> bool:
        return bool(self.content_length) or "transfer-encoding" in self.headers

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
        media_type = self.headers.get("content-type", "")
        if media_type != "application/json":
            media_type = media_type.partition(";")[0].strip().lower()
        # RFC 6839: `+json` is the suffix of types whose syntax is JSON.
        is_json = media_type == "application/json" or media_type.endswith("+json")
        if (
            allow_untyped
            and media_type == "application/x-www-form-urlencoded"
            and "origin" not in self.headers
        ):
            media_type = ""
        if not is_json and (media_type or (self._has_body and not allow_untyped)):
            raise UnsupportedMediaType("Send the body as `Content-Type: application/json`.")
        body = await read_body(
            self.receive, self.headers, self.service.options.max_body_bytes, self.body_memory
        )
        self.record.body_received_at = asyncio.get_running_loop().time()
        return body

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
        limits = self.service.tenancy.read_limits(self.record.owner)
        if limits:
            headers += self.envelope.render_rate_limits(limits, self.service.clock.now())
        if warnings:
            headers.append((WARNINGS_HEADER.encode(), encode_header_text("; ".join(warnings))))
        headers += self.service.options.cors.build_headers(self.headers)
        if self.service.models.is_closed:
            # During shutdown, clients should reconnect to another server.
            headers.append((b"connection", b"close"))
        return headers

    def render_warnings(self, warnings: Sequence[str], *, is_required: bool = False) -> bytes:
        """Render warnings as a JSON array for the body, for clients that do not show
        headers.

        Empty if there are none, or if the client did not ask for them; the `vllm` API
        profile always includes them.

        is_required: include them even if the client did not ask for them.
        """
        if not warnings:
            return b""
        is_wanted = is_required or self.headers.get(WARNINGS_HEADER, "").strip().lower() == "body"
        if not (is_wanted or self.service.options.profile is Profile.VLLM):
            return b""
        return escape_line_breaks(
            msgspec.json.encode([replace_surrogates(warning) for warning in warnings])
        )

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
        if isinstance(error, BudgetExhausted | NotStarted):
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


@dataclass(frozen=True, slots=True)
class JsonResponse:
    """The result of a handler with a complete body.

    warnings: the parts of the request that were ignored.
    """

    body: bytes
    status: int = 200
    content_type: tuple[bytes, bytes] = JSON_CONTENT_TYPE
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvelopedError:
    """An error on a path that several dialects share, with the envelope of the dialect
    that the body uses.
    """

    error: DragomanError
    envelope: ErrorEnvelope


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A fully rendered response.

    content_length: bytes of the body, even if it is omitted (HEAD).
    """

    status: int
    headers: RawHeaders
    body: bytes
    content_length: int
    error: DragomanError | None = None

    async def __call__(
        self, _: OnDisconnect, send: Send, __: DirectResponse | None = None
    ) -> ResponseOutcome:
        # For HEAD, the length of the body that a GET would return (RFC 9110, 9.3.2).
        length_header = (b"content-length", str(self.content_length).encode())
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [*self.headers, length_header],
            }
        )
        await send({"type": "http.response.body", "body": self.body})
        return ResponseOutcome(self.status, self.content_length, self.error)


HandlerResult = JsonResponse | Responder | EnvelopedError | CompleteResponse
Handler = Callable[[HttpRequest], Awaitable[HandlerResult]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path with its handlers.

    path: literal, or a pattern such as `/v1/responses/{id}`.
    access: the required access.
    envelope: the format of all its errors, including those of authentication and of the
        method.
    handlers: handlers by method; HEAD is handled as GET without the body.
    browser_handler: handles the GET of a browser that opens the address; needs no key,
        since browsers cannot send one.
    root: a path without a route of its own; unknown paths below it get this route's
        envelope too.
    """

    path: str
    access: Access
    envelope: ErrorEnvelope
    handlers: Mapping[str, Handler]
    browser_handler: Handler | None = None
    root: str | None = None


class Endpoint:
    """Serves one route."""

    def __init__(
        self, route: Route, service: Service, policy: AccessPolicy, http_metrics: HttpMetrics
    ) -> None:
        self.route = route
        self._service = service
        self._policy = policy
        self._http_metrics = http_metrics

    def find_envelope(self, _path: str) -> ErrorEnvelope:
        """Return the envelope for a path that this endpoint serves."""
        return self.route.envelope

    def open_request(
        self, scope: Scope, receive: Receive, on_disconnect: OnDisconnect
    ) -> RequestLifecycle:
        envelope = self.find_envelope(scope["path"])
        http = build_http_request(scope, receive, on_disconnect, self._service, envelope)
        telemetry = self._service.telemetry
        method = scope["method"]
        if telemetry is not None:
            scheme = scope.get("scheme", "http")
            span = ServerSpan(
                method, self.route.path, http.path, http.headers, http.client_host, scheme
            )
            http.record.span = telemetry.start_request(span)
        return RequestLifecycle(self, http, scope["method"])

    async def handle(self, http: HttpRequest, method: str) -> HandlerResult:
        """Check and authenticate the request, and call its handler.

        Raises:
            DragomanError: the request is rejected.
            ClientGone: the client has disconnected.
        """
        policy = self._policy
        handlers = self.route.handlers
        policy.check_headers(http.headers)
        policy.check_origin(http.headers, self.route.access, reads=method in ("GET", "HEAD"))
        # A preflight carries no key, so it is answered before authentication.
        preflight_headers = policy.cors.build_preflight_headers(method, http.headers, handlers)
        if preflight_headers is not None:
            return CompleteResponse(200, [*http.build_headers(), *preflight_headers], b"", 0)
        browser_handler = self.route.browser_handler
        if browser_handler is not None and method in ("GET", "HEAD") and accepts_html(http.headers):
            return await browser_handler(http)
        caller = policy.keyring.authenticate(http.headers, self.route.access)
        handler = handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = (*handlers, *(("HEAD",) if "GET" in handlers else ()))
            message = f"{method} is not allowed on {self.route.path}; use {', '.join(handlers)}."
            raise MethodNotAllowed(message, allowed=allowed)
        http.record.owner = caller.owner
        try:
            return await handler(
                msgspec.structs.replace(
                    http, caller=caller, service=restrict_service(self._service, caller)
                )
            )
        finally:
            # The body is no longer needed while the response is sent.
            http.body_memory.release()

    def record_outcome(self, lifecycle: RequestLifecycle, outcome: ResponseOutcome) -> None:
        """Record metrics and the access log after a request."""
        service = self._service
        span = lifecycle.record.span
        elapsed = service.clock.monotonic() - lifecycle.started_at
        if span is not None and service.telemetry is not None:
            # The error's own status, since a dialect may map it to one below 500 and a
            # stream begins with 200.
            is_failure = outcome.error is not None and outcome.error.status >= 500
            reason = type(outcome.error).__name__ if is_failure else None
            service.telemetry.end_request(span, outcome.status, reason)
        # Labeled with the route's pattern: the number of actual paths is unbounded.
        self._http_metrics.record(
            lifecycle.method,
            self.route.path,
            outcome.status,
            elapsed,
            lifecycle.content_length,
            outcome.length,
        )
        if service.options.access_log:
            # Escaped, so that a path cannot forge a line of the log.
            escaped_path = lifecycle.path.encode("unicode_escape").decode()[:200]
            fields = None
            # Only the JSON log has fields.
            if service.options.observes_calls:
                name = service.tenancy.keyring.find_name(lifecycle.record.owner)
                fields = {
                    LOG_FIELDS: build_log_fields(
                        lifecycle, escaped_path, outcome.status, elapsed, name
                    )
                }
            log.info(
                "%s %s %s %s %d %.1fms",
                format_address(lifecycle.client),
                lifecycle.id,
                lifecycle.method,
                escaped_path,
                outcome.status,
                elapsed * 1000,
                extra=fields,
            )


def build_log_fields(
    lifecycle: RequestLifecycle, path: str, status: int, elapsed: float, key: str | None
) -> dict[str, object]:
    """Build the fields of a request's line in the JSON log.

    elapsed: seconds.
    key: the name of its API key.
    """
    call = lifecycle.record.call
    span = lifecycle.record.span
    fields: dict[str, object] = {
        "client": format_address(lifecycle.client),
        "request_id": lifecycle.id,
        "method": lifecycle.method,
        "path": path,
        "status": status,
        "duration_s": round(elapsed, 6),
        "key": key,
    }
    if span is not None:
        fields |= {"trace_id": span.context.trace_id, "span_id": span.context.span_id}
    if call is not None:
        fields |= {
            "model": call.model,
            "prompt_tokens": call.prompt_tokens,
            "cached_tokens": call.cached_tokens,
            "output_tokens": call.output_tokens,
            "queue_s": call.queue_s,
            "ttft_s": call.ttft_s,
            "finish_reasons": call.finish_reasons,
            "error": call.error,
        }
    return fields


class RequestLifecycle:
    """A request from its arrival to the end of its response: `respond`, then `finish`.

    Once there is a response, only the data for the log and the metrics is retained.
    """

    __slots__ = (
        "_endpoint",
        "_http",
        "client",
        "content_length",
        "id",
        "method",
        "path",
        "record",
        "started_at",
    )

    def __init__(self, endpoint: Endpoint, http: HttpRequest, method: str) -> None:
        self._endpoint = endpoint
        self._http = http
        self.method = method
        self.id = http.id
        self.path = http.path
        self.started_at = http.started_at
        self.content_length = http.content_length
        self.client = http.client
        self.record = http.record

    async def respond(self) -> Responder | CompleteResponse:
        """Call the handler and build the response. Raises ClientGone: the client has
        disconnected.
        """
        # A stream can last for hours; the request with its body is released once the
        # handler has returned.
        http = self._http
        self._http = None
        assert http is not None
        return build_response(
            http,
            await call_handler(self._endpoint.handle(http, self.method)),
            with_body=self.method != "HEAD",
        )

    def finish(self, outcome: ResponseOutcome) -> None:
        self._endpoint.record_outcome(self, outcome)


def build_http_request(
    scope: Scope,
    receive: Receive,
    on_disconnect: OnDisconnect,
    service: Service,
    envelope: ErrorEnvelope,
) -> HttpRequest:
    """Build the request before authentication, with an anonymous caller."""
    headers = RequestHeaders(scope)
    client_id = headers.get("x-request-id", "")
    return HttpRequest(
        service,
        Caller(),
        headers,
        scope.get("path_params", {}),
        # The id appears in logs and headers, so a client's id is used only if it has
        # plain characters.
        client_id if _PLAIN_ID.fullmatch(client_id) else service.ids.new("req_"),
        service.clock.monotonic(),
        envelope.resolve(headers),
        receive,
        on_disconnect,
        scope.get("query_string", b""),
        scope["path"],
        BodyMemoryShare(service.body_budget),
        scope.get("client"),
    )


async def call_handler(result: Awaitable[HandlerResult]) -> HandlerResult | DragomanError:
    """Return the handler's result, or the error that it raised; unexpected errors are
    logged and wrapped.

    Raises:
        ClientGone: the client has disconnected.
    """
    task = asyncio.current_task()
    try:
        return await result
    except DragomanError as error:
        return error
    # There is no client to respond to.
    except ClientGone:
        raise
    except BaseException as error:
        # A cancellation of this task must propagate; one that comes from an engine must
        # become a 500.
        failure = translate_engine_exception(error, task)
        if not isinstance(failure, Exception):
            raise
        return failure if isinstance(failure, DragomanError) else wrap_unexpected_error(failure)


def restrict_service(service: Service, caller: Caller) -> Service:
    """Return the service with only the models that the caller's key permits."""
    tenant = service.tenancy.keyring.peek_tenant(caller.owner)
    if tenant is None or not tenant.models:
        return service
    return dataclasses.replace(service, models=service.models.restrict(tenant.models))


def build_response(
    http: HttpRequest, result: HandlerResult | DragomanError, *, with_body: bool = True
) -> Responder | CompleteResponse:
    """Build the response; errors use the dialect's envelope.

    with_body: False omits the body (HEAD).
    """
    if isinstance(result, CompleteResponse):
        return result if with_body else dataclasses.replace(result, body=b"")
    if isinstance(result, Responder):
        if isinstance(result, ReplayResponder):
            result.has_body = with_body
        return result
    if isinstance(result, EnvelopedError):
        http = msgspec.structs.replace(http, envelope=result.envelope)
        result = result.error
    if isinstance(result, DragomanError):
        status, headers, error_body = http.render_error(result)
        # HEAD has no body, not even in an error.
        return CompleteResponse(
            status, headers, error_body if with_body else b"", len(error_body), result
        )
    warnings = result.warnings
    if http.query_string and result.status < HTTPStatus.BAD_REQUEST:
        warnings += http.describe_unread_query()
    response_headers = http.build_headers(result.content_type, warnings)
    body = add_warnings(result.body, http.render_warnings(warnings))
    return CompleteResponse(result.status, response_headers, body if with_body else b"", len(body))


def accepts_html(headers: Headers) -> bool:
    """Whether a browser navigates to the address: API clients and scripts do not ask
    for HTML.
    """
    return "text/html" in headers.get("accept", "").lower()


def format_address(client: tuple[str, int] | None) -> str:
    """Format a client's address for the access log; `-` over a Unix socket."""
    if client is None or not client[0]:
        return "-"
    host, port = client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_header_text(text: str) -> bytes:
    """Encode text for a header: printable ASCII, at most 2048 bytes."""
    return text.encode("ascii", "replace").translate(_TO_PRINTABLE)[:2048]


_TO_PRINTABLE = bytes(byte if 32 <= byte < 127 else ord("?") for byte in range(256))
