"""OpenTelemetry of requests, by its semantic conventions for generative AI.

A request has a span of kind SERVER, a child of the client's span if it sends
`traceparent`. Each call that uses a model has a span below it, whose context is passed
to an upstream. No span contains a prompt, a response or a key.

https://opentelemetry.io/docs/specs/semconv/http/http-spans/#http-server
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from starlette.datastructures import Headers

from ..core.request import Conversation, GenerateRequest
from ..core.trace_context import SpanContext, parse_trace_context
from ..telemetry.gen_ai_metrics import GenAiMetrics
from ..telemetry.spans import AttributeValue, Span, Tracer
from .http_metrics import EXCLUDED_PATHS
from .request_log import RequestLogLine

PROVIDER = "dragoman"
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}
)
"""Methods of RFC 9110 and RFC 5789; the conventions require `_OTHER` for any other."""
_MAX_TEXT = 256
"""Maximum characters of a client's text in an attribute."""


class ServerSpan(Struct, frozen=True):
    """The attributes of a request that its span starts with.

    route: the route's path template; `*` if none matches.
    """

    method: str
    route: str
    path: str
    headers: Headers
    client_host: str | None
    scheme: str


class Telemetry:
    """Starts and ends spans, and records metrics.

    close: sends what remains; blocks.
    """

    def __init__(self, tracer: Tracer, metrics: GenAiMetrics, close: Callable[[], None]) -> None:
        self._tracer = tracer
        self._metrics = metrics
        self.close = close

    def start_request(self, request: ServerSpan) -> Span | None:
        """Start a request's span; None for probes."""
        if request.route in EXCLUDED_PATHS:
            return None
        headers = request.headers
        route = None if request.route == "*" else request.route
        method = request.method if request.method in _METHODS else None
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method or "_OTHER",
            "url.path": request.path[:_MAX_TEXT],
            "url.scheme": request.scheme,
        }
        # `Host` is `address` or `address:port`; an IPv6 address is in brackets.
        host = headers.get("host", "")[:_MAX_TEXT]
        name, _, port = host.rpartition(":")
        if name and port.isascii() and port.isdecimal() and len(port) <= 5:
            attributes |= {"server.address": name.strip("[]"), "server.port": int(port)}
        else:
            attributes["server.address"] = host.strip("[]")
        if method is None:
            attributes["http.request.method_original"] = request.method[:_MAX_TEXT]
        if route is not None:
            attributes["http.route"] = route
        if request.client_host is not None:
            attributes["client.address"] = request.client_host
        if "user-agent" in headers:
            attributes["user_agent.original"] = headers["user-agent"][:_MAX_TEXT]
        parent = parse_trace_context(
            headers.get("traceparent"), ",".join(headers.getlist("tracestate"))
        )
        name = " ".join(filter(None, (method or "HTTP", route)))
        return self._tracer.start(name, "server", parent, attributes)

    def end_request(self, span: Span, status: int, error: str | None) -> None:
        """End a request's span. Without an error, only a status of 500 or more makes it
        one of a failure.

        status: the HTTP status that the client got.
        error: type of the server's error; None if there is none.
        """
        attributes: dict[str, AttributeValue] = {"http.response.status_code": status}
        reason = str(status) if error is None and status >= 500 else error
        if reason is not None:
            attributes["error.type"] = reason
        span.end(attributes, reason)

    def start_call(
        self,
        parent: SpanContext | None,
        model: str,
        kind: str,
        request: GenerateRequest | None,
        response_id: str,
    ) -> TracedCall:
        """Start the span of a call.

        kind: operation name if there is no `request`.
        request: None for embeddings and scores.
        """
        operation = kind
        if request is not None:
            operation = "chat" if isinstance(request.prompt, Conversation) else "text_completion"
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model[:_MAX_TEXT],
        }
        if request is not None:
            # Only parameters that are set become attributes.
            sampling = request.sampling
            values: dict[str, AttributeValue | None] = {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "frequency_penalty": sampling.frequency_penalty,
                "presence_penalty": sampling.presence_penalty,
                "seed": sampling.seed,
                "max_tokens": request.limits.max_tokens,
                "choice.count": request.choices if request.choices > 1 else None,
            }
            attributes |= {
                f"gen_ai.request.{name}": value
                for name, value in values.items()
                if value is not None
            }
        span = self._tracer.start(f"{operation} {model[:_MAX_TEXT]}", "client", parent, attributes)
        return TracedCall(self, span, operation, response_id)

    def end_call(self, span: Span, line: RequestLogLine, operation: str, response_id: str) -> None:
        """End a call's span, and record its metrics.

        line: the call's line of the request log.
        operation: `gen_ai.operation.name` of the span.
        """
        error = line.error
        attributes: dict[str, AttributeValue] = {"gen_ai.response.model": line.model}
        if response_id:
            attributes["gen_ai.response.id"] = response_id
        if line.finish_reasons:
            attributes["gen_ai.response.finish_reasons"] = tuple(line.finish_reasons)
        if line.prompt_tokens is not None:
            attributes["gen_ai.usage.input_tokens"] = line.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = line.output_tokens
        if line.cached_tokens is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = line.cached_tokens
        for name, value in (("queue_time", line.queue_s), ("time_to_first_token", line.ttft_s)):
            if value is not None:
                attributes[f"dragoman.{name}"] = value
        if line.key is not None:
            attributes["dragoman.api_key.name"] = line.key
        if error is not None:
            attributes["error.type"] = error
        span.end(attributes, error)
        self._metrics.record(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": line.model,
            },
            seconds=line.latency_s or 0.0,
            ttft=line.ttft_s,
            input_tokens=line.prompt_tokens,
            output_tokens=line.output_tokens,
            error=error,
        )


class TracedCall(Struct, frozen=True):
    """A running call's span, with the data that its end needs."""

    telemetry: Telemetry
    span: Span
    operation: str
    response_id: str

    def end(self, line: RequestLogLine) -> None:
        self.telemetry.end_call(self.span, line, self.operation, self.response_id)
