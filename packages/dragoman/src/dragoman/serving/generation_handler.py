"""Handlers of generation routes in any dialect."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers

from ..core.field_names import FieldNames
from ..dialects.interfaces import GenerationCall, ReaderOptions, Writer
from .call_admission import AdmittedCall, admit_call, build_header
from .call_reading import read_call
from .client_warnings import join_warnings, render_warnings
from .generation_responder import GenerationResponder, RenderedWarnings
from .handler_result import JsonResponse
from .http_request import HttpRequest, render_warnings_header
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
    headers = (
        build_stream_headers(http, content_type=content_type) if stream else http.build_headers()
    )
    render = _WarningRenderer(
        admitted.warnings,
        admitted.field_names,
        http.describe_unread_query(),
        # A stream can carry warnings only in comments, which only server-sent events
        # have.
        has_place=not stream or content_type == EVENT_STREAM,
        is_wanted=http.wants_warnings_in_body,
    )
    # Most responses have no warnings.
    known = (
        render((), headers)
        if render.known or render.unread_query
        else RenderedWarnings(headers, b"")
    )
    return GenerationResponder(
        admitted.run.batches,
        writer,
        (_keep_for_errors(http) if stream else http).build_response_start(
            known.headers, find_header_timeout(http.service, admitted)
        ),
        http.service.stream_monitor,
        stream=stream,
        warnings=known.body,
        render_warnings=render,
        field_names=admitted.field_names,
    )


_NO_HEADERS = Headers(raw=[])


def _keep_for_errors(http: HttpRequest) -> HttpRequest:
    """Return what an error needs of a request: its headers take a kilobyte of each of the
    streams that wait for their start.
    """
    # CORS alone looks at the headers of the request, which only browsers send.
    if http.headers.get("origin") is not None:
        return http
    return msgspec.structs.replace(http, headers=_NO_HEADERS)


class _WarningRenderer(Struct, frozen=True):
    """Renders the warnings of a response over HTTP. Implements `WarningRenderer`.

    known: the warnings of the call.
    field_names: the client's names for the fields in the engine's warnings.
    unread_query: warnings about query parameters.
    has_place: whether the body can carry warnings.
    is_wanted: whether the client wants them in the body. Once the headers are sent,
        there is no other place.
    """

    known: tuple[str, ...]
    field_names: FieldNames
    unread_query: tuple[str, ...]
    has_place: bool
    is_wanted: bool

    def __call__(self, later: tuple[str, ...], headers: RawHeaders | None, /) -> RenderedWarnings:
        known = join_warnings(self.known, self.field_names, later)
        warnings = (*known, *self.unread_query)
        if not warnings:
            return RenderedWarnings(headers or [], b"")
        header = render_warnings_header(warnings)
        is_in_body = self.has_place and (headers is None or self.is_wanted)
        return RenderedWarnings(
            [*(other for other in headers or () if other[0] != header[0]), header],
            render_warnings(warnings) if is_in_body else b"",
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
