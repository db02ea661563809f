"""Maps upstream errors to this server's errors. Client errors stay client errors, with
the upstream's message; the message of a server error is only logged.
"""

from __future__ import annotations

import json
import logging
import re
from typing import cast

import msgspec
from msgspec import Struct

from dragoman_http import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    HttpClientError,
    ResponseTimeout,
)

from ...core.errors import (
    BodyTooLarge,
    Conflict,
    ContextTooLong,
    DragomanError,
    EngineError,
    EngineTimeout,
    ModelNotFound,
    NotFound,
    Overloaded,
    RateLimited,
    RequestError,
    UnsupportedMediaType,
)
from .event_decoding import clean_text
from .wire import UpstreamErrorBody, WireError

log = logging.getLogger(__name__)

MAX_MESSAGE = 2_000
"""Characters of an upstream's error message that are kept."""
MAX_ERROR_BODY = 64 * 1024
"""Limit of the bytes that are read from an error response."""

_ERROR_TYPES: dict[int, type[DragomanError]] = {
    404: NotFound,
    408: EngineTimeout,
    409: Conflict,
    413: BodyTooLarge,
    415: UnsupportedMediaType,
    429: RateLimited,
    502: Overloaded,
    503: Overloaded,
    504: EngineTimeout,
    529: Overloaded,
}
_OVERLOADED = "The upstream is overloaded; retry later."
_SERVER_ERRORS = {503: _OVERLOADED, 504: "The upstream did not answer in time.", 529: _OVERLOADED}
"""Messages for clients, by status. Anthropic sends 529 where other servers send 503."""
_SERVER_CODES = frozenset(
    {"overloaded", "timeout", "engine_error", "engine_paused", "internal_error"}
)
"""Codes of server errors that are passed on, since clients act on them."""
_OVERLOADED_CODES = frozenset({"overloaded", "engine_paused"})
"""Codes of an overloaded server. Another code would hide from clients that they can
retry.
"""
_INTERNAL_PARAMS = frozenset({"input_text", "input_tokens"})
"""Values of `param` in vLLM's error for a prompt that is too long. They name no field
of a request.
"""
# The limit and the prompt's size in messages for a prompt that is too long: vLLM's and
# OpenAI's, then Anthropic's.
_CONTEXT = re.compile(r"maximum context length is ([0-9]{1,9}) tokens")
_PROMPT = re.compile(
    r"(?:your prompt has|your prompt contains|resulted in) (at least )?([0-9]{1,9}) (?!characters)"
)
_GOOGLE_CONTEXT = re.compile(
    r"input token count \(?([0-9]{1,9})\)? exceeds the maximum number of tokens allowed "
    r"\(?([0-9]{1,9})\)?"
)
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
_KEY_INVALID = "API_KEY_INVALID"
"""Google's reason for a wrong key, with the status 400."""
_ANTHROPIC_CONTEXT = re.compile(r"prompt is too long: ([0-9]{1,9}) tokens > ([0-9]{1,9}) maximum")
_STREAM_STATUSES = {
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "resource_exhausted": 429,
    "overloaded": 503,
    "overloaded_error": 503,
    "server_is_overloaded": 503,
    "slow_down": 503,
    "service_unavailable": 503,
    "unavailable": 503,
    "timeout": 504,
    "timeout_error": 504,
    "deadline_exceeded": 504,
}
"""HTTP statuses for the types and codes of errors within a stream: Anthropic's,
OpenAI's and Google's, in lower case.
"""
_decode = msgspec.json.Decoder(UpstreamErrorBody).decode
_decode_list = msgspec.json.Decoder(list[UpstreamErrorBody]).decode


class ConnectionClosed(Overloaded):
    """The connection was lost before a response, as happens to keepalive connections
    that the server closed.
    """


def build_transport_error(error: HttpClientError) -> EngineError:
    """Build the error of a request without a response. Only an Overloaded error can be
    retried.
    """
    match error:
        case ConnectFailed():
            return Overloaded("The upstream cannot be reached.")
        case ConnectionLost():
            return ConnectionClosed("The upstream closed the connection.")
        case _:
            return build_lost_error(error)


def build_lost_error(error: HttpClientError) -> EngineError:
    """Build the error of a response that broke off."""
    match error:
        case ResponseTimeout():
            return EngineTimeout("The upstream timed out.")
        case ClientClosed():
            return EngineError("The engine was stopped.")
        case ConnectionLost():
            return EngineError("The connection to the upstream was lost.")
        case _:
            return EngineError("The upstream sent an invalid response.")


def parse_error(status: int, body: bytes, retry_after: str | None) -> DragomanError:
    """Parse a response with a status other than 200. retry_after: that header."""
    try:
        # Google wraps the error of a request for a stream into an array.
        bodies = _decode_list(body) if body.lstrip().startswith(b"[") else [_decode(body)]
        decoded = bodies[0] if bodies else UpstreamErrorBody()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoded = UpstreamErrorBody()
    match decoded:
        case UpstreamErrorBody(error=dict() | list()):
            error = read_error(decoded.error)
        case (
            UpstreamErrorBody(error=str() as message)
            | UpstreamErrorBody(message=str() as message)
            | UpstreamErrorBody(detail=str() as message)
        ):
            error = WireError(message, param=decoded.param, code=decoded.code)
        case UpstreamErrorBody(detail=None):
            error = WireError()
        case _:
            error = WireError(msgspec.json.encode(decoded.detail).decode())
    # An HTTP date would need synchronized clocks; the error's default applies instead.
    seconds = (retry_after or "").strip()
    is_number = _SECONDS.fullmatch(seconds)
    return build_error(status, error, float(seconds) if is_number else error.retry_after)


def build_error(status: int, error: WireError, retry_after: float | None = None) -> DragomanError:
    """Build the error for an upstream's status and error object.

    retry_after: seconds; None means the default of the error's class.
    """
    message = (error.message or "")[:MAX_MESSAGE]
    if status in (401, 402, 403, 407) or error.type == _KEY_INVALID or 300 <= status < 400:
        # The upstream's URL and key are this server's configuration: authentication
        # errors and redirects are not the client's fault.
        return EngineError(
            f"The upstream rejected this server's request (HTTP {status}).", code="upstream_error"
        )
    if status >= 500:
        # Its message is for the operator, not for the client.
        log.warning("upstream error (HTTP %d): %s", status, message or "no message")
        message = _SERVER_ERRORS.get(status, "")
    if error.param in _INTERNAL_PARAMS:
        error = msgspec.structs.replace(error, param=None)
    message = message or f"The upstream failed (HTTP {status})."
    # vLLM sends a number, which only repeats the status.
    code = error.code if isinstance(error.code, str) else None
    allowed_codes = _OVERLOADED_CODES if status in (503, 529) else _SERVER_CODES
    if status >= 500 and code not in allowed_codes:
        code = None
    if code == "model_not_found":
        return ModelNotFound(message, param=error.param)
    if 400 <= status < 500:
        # A prompt that is too long: clients get the error in their own dialect, with
        # its numbers if known.
        limit = _CONTEXT.search(message)
        prompt = _PROMPT.search(message)
        sizes = _ANTHROPIC_CONTEXT.search(message) or _GOOGLE_CONTEXT.search(message)
        if limit is not None and prompt is not None:
            is_lower_bound = prompt[1] is not None
            size = int(prompt[2])
            return ContextTooLong(
                limit=int(limit[1]), prompt=size, at_least=is_lower_bound, param=error.param
            )
        if sizes is not None:
            return ContextTooLong(limit=int(sizes[2]), prompt=int(sizes[1]), param=error.param)
        if limit is not None or code == "context_length_exceeded":
            return RequestError(message, param=error.param, code="context_length_exceeded")
    error_type = _ERROR_TYPES.get(status, RequestError if 400 <= status < 500 else EngineError)
    if not issubclass(error_type, RateLimited | EngineError):
        retry_after = None
    return error_type(message, param=error.param, code=code, retry_after=retry_after)


def read_error(value: object) -> WireError:
    """Read an error in any of the vendors' forms: a text, an object, an object within
    an `error` field, or Google's list of one.
    """
    match value:
        case str():
            return WireError(value, code=value if value.lower() in _STREAM_STATUSES else None)
        case list():
            return read_error(next(iter(cast("list[object]", value)), None))
        case dict():
            fields = cast("dict[str, object]", value)
            if fields.get("error"):
                return read_error(fields["error"])
            code = next(
                (
                    fields[name]
                    for name in ("code", "status_code", "status")
                    if fields.get(name) is not None
                ),
                None,
            )
            type = fields.get("type")
            param = fields.get("param")
            field, reason, retry_after = _read_google_details(fields.get("details"))
            return WireError(
                _render_message(fields.get("message") or fields.get("detail")),
                type if isinstance(type, str) else reason,
                param if isinstance(param, str) else field,
                code if isinstance(code, str | int) else None,
                retry_after,
            )
        case _:
            return WireError()


class _FieldViolation(Struct, frozen=True):
    field: str | None = None


class _GoogleDetail(Struct, frozen=True):
    """One of the details of Google's error: of an invalid field, the caller's account,
    or a retry.
    """

    fieldViolations: list[_FieldViolation] = []
    reason: str | None = None
    retryDelay: str = ""

    @property
    def seconds(self) -> float | None:
        delay = self.retryDelay.removesuffix("s")
        return float(delay) if _SECONDS.fullmatch(delay) else None


def _read_google_details(value: object) -> tuple[str | None, str | None, float | None]:
    """Return the invalid field, the reason and the delay of a retry, if they are known."""
    try:
        details = msgspec.convert(value, list[_GoogleDetail])
    except msgspec.ValidationError:
        return None, None, None
    violations = [violation.field for detail in details for violation in detail.fieldViolations]
    reasons = [detail.reason for detail in details if detail.reason]
    delays = [detail.seconds for detail in details if detail.seconds is not None]
    return next(iter(violations), None), next(iter(reasons), None), next(iter(delays), None)


def _render_message(message: object) -> str | None:
    if message is None or isinstance(message, str):
        return None if message is None else clean_text(message)
    return clean_text(json.dumps(message, ensure_ascii=False))


def build_stream_error(error: WireError | str) -> DragomanError:
    """Build the error of a stream's error event. Its status is derived from its code or
    type, as it has no other.
    """
    if isinstance(error, str):
        error = read_error(error)
    code = str(error.code)
    if code.isascii() and code.isdigit() and 400 <= int(code[:9]) < 600:
        return build_error(int(code), error)
    status = _STREAM_STATUSES.get(code.lower())
    return build_error(status or _STREAM_STATUSES.get((error.type or "").lower(), 500), error)


def build_event_error(error: WireError | str, *, has_started: bool) -> DragomanError:
    """Build the error of a stream's error event, as a server error if the response has
    started.

    By then the upstream has accepted the request, and the status has been sent to the
    client.
    """
    built = build_stream_error(error)
    return (
        built if isinstance(built, EngineError) or not has_started else EngineError(built.message)
    )


def read_error_event(data: bytes) -> WireError:
    """Read the data of an event that is named `error`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = data.decode("utf-8", "replace")
    return read_error(value)
