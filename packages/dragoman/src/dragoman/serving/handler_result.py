"""The result of a handler, which becomes a response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus

import msgspec
from msgspec import Struct
from starlette.types import Send

from ..core.errors import (
    DragomanError,
)
from ..dialects.error_envelope import ErrorEnvelope
from ..http.asgi_extensions import DirectResponse, OnDisconnect
from ..pipeline.engine_calls import translate_engine_exception
from .client_warnings import add_warnings
from .disconnect import ClientGone
from .http_request import JSON_CONTENT_TYPE, HttpRequest
from .replay_responder import ReplayResponder
from .responder import (
    RawHeaders,
    Responder,
    ResponseOutcome,
    send_whole,
    wrap_unexpected_error,
)


class JsonResponse(Struct, frozen=True):
    """The result of a handler with a complete body.

    warnings: the parts of the request that were ignored.
    """

    body: bytes
    status: int = 200
    content_type: tuple[bytes, bytes] = JSON_CONTENT_TYPE
    warnings: tuple[str, ...] = ()


class EnvelopedError(Struct, frozen=True):
    """An error on a path that several dialects share, with the envelope of the dialect
    that the body uses.
    """

    error: DragomanError
    envelope: ErrorEnvelope


class CompleteResponse(Struct, frozen=True):
    """A fully rendered response.

    content_length: bytes of the body, even if it is omitted (HEAD).
    """

    status: int
    headers: RawHeaders
    body: bytes
    content_length: int
    error: DragomanError | None = None

    async def __call__(
        self, _: OnDisconnect, send: Send, direct: DirectResponse | None = None
    ) -> ResponseOutcome:
        # For HEAD, the length of the body that a GET would return (RFC 9110, 9.3.2).
        await send_whole(
            send, direct, self.status, self.headers, self.body, length=self.content_length
        )
        return ResponseOutcome(self.status, self.content_length, self.error)


HandlerResult = JsonResponse | Responder | EnvelopedError | CompleteResponse


async def call_handler(result: Awaitable[HandlerResult]) -> HandlerResult | DragomanError:
    """Return the handler's result, or the error that it raised; unexpected errors are
    logged and wrapped.

    Raises:
        ClientGone: the client has disconnected.
    """
    try:
        return await result
    except BaseException as error:
        return translate_failure(error)


def translate_failure(error: BaseException) -> DragomanError:
    """Return what a handler's error becomes in its response; an unexpected one is
    logged. Raises it if there is nothing to respond: called in its `except` clause.
    """
    if isinstance(error, DragomanError):
        return error
    # There is no client to respond to.
    if isinstance(error, ClientGone):
        raise error
    # A cancellation of this task must propagate; one that comes from an engine must
    # become a 500.
    failure = translate_engine_exception(error, asyncio.current_task())
    if not isinstance(failure, Exception):
        raise error
    return failure if isinstance(failure, DragomanError) else wrap_unexpected_error(failure)


def build_response(
    http: HttpRequest, result: HandlerResult | DragomanError, *, with_body: bool = True
) -> Responder | CompleteResponse:
    """Build the response; errors use the dialect's envelope.

    with_body: False omits the body (HEAD).
    """
    if isinstance(result, CompleteResponse):
        return result if with_body else msgspec.structs.replace(result, body=b"")
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
