"""The endpoint that serves one route, from the arrival of a request to its end.

Pure ASGI: no middleware wraps `send`, so streamed tokens incur no overhead.
"""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from ..core.errors import (
    MethodNotAllowed,
)
from ..dialects.error_envelope import ErrorEnvelope
from ..http.asgi_extensions import OnDisconnect
from .access_policy import AccessPolicy
from .handler_result import CompleteResponse, HandlerResult, build_response, translate_failure
from .http_metrics import HttpMetrics
from .http_request import HttpRequest, build_http_request
from .request_context import RequestRecord
from .request_limits import run_within_limits
from .responder import Responder, ResponseOutcome
from .route import Route
from .service import Service, restrict_service
from .tracing import ServerSpan

log = logging.getLogger("dragoman.access")

LOG_FIELDS = "fields"
"""The attribute of a log record that holds the fields of its line in the JSON log."""


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
    ) -> HttpRequest:
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
        return http

    async def respond(self, http: HttpRequest, method: str) -> Responder | CompleteResponse:
        """Call the handler and build the response. Raises ClientGone: the client has
        disconnected.
        """
        with_body = method != "HEAD"
        try:
            result = await self._handle(http, method)
        except BaseException as error:
            # Not kept in a variable: with its traceback, which contains this frame, it
            # would be a reference cycle.
            return build_response(http, translate_failure(error), with_body=with_body)
        return build_response(http, result, with_body=with_body)

    async def _handle(self, http: HttpRequest, method: str) -> HandlerResult:
        """Check and authenticate the request, and call its handler.

        Raises:
            DragomanError: the request is rejected.
            ClientGone: the client has disconnected.
        """
        policy = self._policy
        operations = self.route.operations
        policy.check_headers(http.headers, requires_host=http.http_version != "1.0")
        # Only browsers send these, and nearly all clients are not.
        find = http.headers.get
        if find("origin") is not None or find("sec-fetch-site") is not None:
            policy.check_origin(http.headers, self.route.access, reads=method in ("GET", "HEAD"))
            # A preflight carries no key, so it is answered before authentication.
            preflight = policy.cors.build_preflight_headers(method, http.headers, operations)
            if preflight is not None:
                return CompleteResponse(200, [*http.build_headers(), *preflight], b"", 0)
        browser_handler = self.route.browser_handler
        if browser_handler is not None and method in ("GET", "HEAD") and accepts_html(http.headers):
            return await browser_handler(http)
        parameter = self.route.envelope.key_parameter
        keys = () if parameter is None else tuple(http.query.getlist(parameter))
        caller = policy.keyring.authenticate(http.headers, self.route.access, keys)
        operation = operations.get("GET" if method == "HEAD" else method)
        if operation is None:
            allowed = (*operations, *(("HEAD",) if "GET" in operations else ()))
            message = f"{method} is not allowed on {self.route.path}; use {', '.join(operations)}."
            raise MethodNotAllowed(message, allowed=allowed)
        http.record.owner = caller.owner
        http.body_memory.owner = caller.owner
        http.caller = caller
        cost = None
        # Without keys there is nothing to restrict or to limit.
        if not policy.keyring.is_open:
            http.service = restrict_service(self._service, caller)
            cost = self.route.find_cost(method)
        try:
            if cost is None:
                return await operation.handler(http)
            return await run_within_limits(operation.handler, http, cost)
        finally:
            # The body is no longer needed while the response is sent.
            http.body_memory.release()

    def record_outcome(self, record: RequestRecord, method: str, outcome: ResponseOutcome) -> None:
        """Record metrics and the access log after a request."""
        service = self._service
        span = record.span
        elapsed = service.clock.monotonic() - record.started_at
        if span is not None and service.telemetry is not None:
            # The error's own status, since a dialect may map it to one below 500 and a
            # stream begins with 200.
            is_failure = outcome.error is not None and outcome.error.status >= 500
            reason = type(outcome.error).__name__ if is_failure else None
            service.telemetry.end_request(span, outcome.status, reason)
        # Labeled with the route's pattern: the number of actual paths is unbounded.
        self._http_metrics.record(
            method,
            self.route.path,
            outcome.status,
            elapsed,
            record.content_length,
            outcome.length,
        )
        if service.options.access_log:
            # Escaped, so that a path cannot forge a line of the log.
            escaped_path = record.path.encode("unicode_escape").decode()[:200]
            fields = None
            # Only the JSON log has fields.
            if service.options.observes_calls:
                name = service.tenancy.keyring.find_name(record.owner)
                fields = {
                    LOG_FIELDS: build_log_fields(
                        record, method, escaped_path, outcome.status, elapsed, name
                    )
                }
            log.info(
                "%s %s %s %s %d %.1fms",
                format_address(record.client),
                record.id,
                method,
                escaped_path,
                outcome.status,
                elapsed * 1000,
                extra=fields,
            )


def build_log_fields(
    record: RequestRecord, method: str, path: str, status: int, elapsed: float, key: str | None
) -> dict[str, object]:
    """Build the fields of a request's line in the JSON log.

    elapsed: seconds.
    key: the name of its API key.
    """
    call = record.call
    span = record.span
    fields: dict[str, object] = {
        "client": format_address(record.client),
        "request_id": record.id,
        "method": method,
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
    name = f"[{host}]" if ":" in host else host
    # A proxy reports no port.
    return f"{name}:{port}" if port else name
