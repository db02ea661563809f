"""Handlers of generation routes in any dialect."""

from __future__ import annotations

from collections.abc import Callable

from ..dialects.interfaces import GenerationCall, ReaderOptions, Writer
from .call_admission import AdmittedCall, admit_call, build_header, join_warnings
from .call_reading import read_call
from .client_warnings import render_warnings
from .generation_responder import GenerationResponder
from .handler_result import JsonResponse
from .http_request import HttpRequest
from .responder import RawHeaders, Responder
from .route import Handler
from .service import Service

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
# Otherwise buffering proxies would deliver a stream only when it is complete.
NO_BUFFERING_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def build_generation_handler(read: Callable[[bytes, ReaderOptions], GenerationCall]) -> Handler:
    """Build the handler of a generation route.

    read: parses its bodies.
    """

    async def handle(http: HttpRequest) -> JsonResponse | Responder:
        return await run_generation(http, await read_call(http, read))

    return handle


async def run_generation(http: HttpRequest, call: GenerationCall) -> Responder:
    """Admit a call and return its responder. Raises as `admit_call`."""
    admitted = await admit_call(http, call, build_header(http, call))
    return build_responder(http, call.writer(admitted.header), admitted, stream=call.stream)


def build_responder(
    http: HttpRequest,
    writer: Writer,
    admitted: AdmittedCall,
    *,
    stream: bool,
    content_type: tuple[bytes, bytes] = EVENT_STREAM,
) -> Responder:
    """Build the responder of an admitted call.

    content_type: the content type of a stream.
    """
    # A stream can carry warnings only in comments, which only server-sent events have.
    can_carry_warnings = not stream or content_type == EVENT_STREAM

    unread_query = http.describe_unread_query()

    def render(warnings: tuple[str, ...], *, is_required: bool = False) -> tuple[RawHeaders, bytes]:
        warnings += unread_query
        response_headers = (
            build_stream_headers(http, warnings, content_type)
            if stream
            else http.build_headers(warnings=warnings)
        )
        body_warnings = (
            http.render_warnings(warnings, is_required=is_required) if can_carry_warnings else b""
        )
        return response_headers, body_warnings

    def add_warnings(later: tuple[str, ...], has_headers: bool) -> tuple[RawHeaders, bytes]:
        # If the headers have already been sent, the body is the only place for the
        # warnings.
        return render(admitted.join_warnings(later), is_required=has_headers)

    known_warnings = admitted.warnings
    field_names = admitted.field_names

    def render_late_warnings(later: tuple[str, ...]) -> bytes:
        if not can_carry_warnings:
            return b""
        return render_warnings((*join_warnings(known_warnings, field_names, later), *unread_query))

    headers, rendered_warnings = render(admitted.warnings)
    return GenerationResponder(
        admitted.run.batches,
        writer,
        http.build_response_start(headers, find_header_timeout(http.service, admitted)),
        http.service.stream_monitor,
        stream=stream,
        warnings=rendered_warnings,
        add_warnings=add_warnings,
        render_late_warnings=render_late_warnings,
    )


def find_header_timeout(service: Service, admitted: AdmittedCall) -> float:
    """Return the seconds for which a stream's headers may wait for the first event."""
    timeouts = service.options.timeouts
    return timeouts.admitted_headers if admitted.run.is_admitted else timeouts.headers


def build_stream_headers(
    http: HttpRequest,
    warnings: tuple[str, ...] = (),
    content_type: tuple[bytes, bytes] = EVENT_STREAM,
) -> RawHeaders:
    return http.build_headers(content_type, warnings) + NO_BUFFERING_HEADERS
