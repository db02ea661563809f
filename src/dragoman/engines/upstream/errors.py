"""An upstream's errors as ours. What was the client's fault there stays the client's, in the upstream's own words."""

from __future__ import annotations

import re

import msgspec

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
    UnsupportedMedia,
)
from .wire import Refusal, WireError

MOST_TEXT = 2_000

_KINDS: dict[int, type[DragomanError]] = {
    404: NotFound,
    408: EngineTimeout,
    409: Conflict,
    413: BodyTooLarge,
    415: UnsupportedMedia,
    429: RateLimited,
    502: Overloaded,
    503: Overloaded,
    504: EngineTimeout,
}
_CONTEXT = re.compile(r"maximum context length is ([0-9]{1,9}) tokens")
_PROMPT = re.compile(r"(?:your prompt has|your prompt contains|resulted in) (at least )?([0-9]{1,9}) ")
_decode = msgspec.json.Decoder(Refusal).decode


def refusal(status: int, body: bytes, retry_after: str | None) -> DragomanError:
    """Of an answer with another status than 200. retry_after: that header."""
    return error_of(status, _told(body), _seconds(retry_after))


def error_of(status: int, told: WireError, retry_after: float | None = None) -> DragomanError:
    message = (told.message or "")[:MOST_TEXT]
    if status in (401, 402, 403, 407) or 300 <= status < 400:
        # The client has no part in it: which key goes upstream, and where that is, this server was told.
        return EngineError(f"The upstream rejected this server's request (HTTP {status}).", code="upstream_error")
    message = message or f"The upstream failed (HTTP {status})."
    code = told.code if isinstance(told.code, str) else None
    if code == "model_not_found":
        return ModelNotFound(message, param=told.param)
    if 400 <= status < 500 and (long := _context(message, code, told.param)):
        return long
    kind = _KINDS.get(status, RequestError if 400 <= status < 500 else EngineError)
    if not issubclass(kind, RateLimited | EngineError):
        retry_after = None
    return kind(message, param=told.param, code=code, retry_after=retry_after)


def error_in_stream(told: WireError | str) -> DragomanError:
    """Of an error that came as a stream's data. It has a status only by its code or its type."""
    if isinstance(told, str):
        return EngineError(told[:MOST_TEXT])
    if isinstance(told.code, int) and 400 <= told.code < 600:
        return error_of(told.code, told)
    statuses = {"invalid_request_error": 400, "rate_limit_error": 429, "rate_limit_exceeded": 429, "overloaded": 503}
    return error_of(statuses.get(told.type or "", statuses.get(str(told.code), 500)), told)


def _context(message: str, code: str | None, param: str | None) -> RequestError | None:
    """A prompt that is too long is told to clients in their own dialect, with its numbers where they are known."""
    limit, prompt = _CONTEXT.search(message), _PROMPT.search(message)
    if limit is not None and prompt is not None:
        about = prompt[1] is not None
        return ContextTooLong(limit=int(limit[1]), prompt=int(prompt[2]), at_least=about, param=param)
    if limit is not None or code == "context_length_exceeded":
        return RequestError(message, param=param, code="context_length_exceeded")
    return None


def _told(body: bytes) -> WireError:
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return WireError()
    match found:
        case Refusal(error=WireError() as error):
            return error
        case Refusal(error=str() as message) | Refusal(message=str() as message) | Refusal(detail=str() as message):
            return WireError(message, param=found.param, code=found.code)
        case Refusal(detail=None):
            return WireError()
        case _:
            return WireError(msgspec.json.encode(found.detail).decode())


def _seconds(retry_after: str | None) -> float | None:
    """A date would need a clock that both agree on; the error's own default will do."""
    plain = (retry_after or "").strip()
    return float(plain) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", plain) else None
