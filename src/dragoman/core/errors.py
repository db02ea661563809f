"""What can go wrong. Dialects decide what each error looks like on the wire.

    DragomanError
     +-- RequestError            400  the client's request cannot be served as asked
     |    +-- Unsupported        400  understood, but this engine or server cannot do it
     |    +-- ContextTooLong     400  prompt (and asked-for answer) do not fit the model
     |    +-- NotAuthenticated   401  no key, or one that is not known
     |    +-- NotPermitted       403  the key is known and may not do this
     |    +-- NotFound           404  no such route or thing
     |    |    +-- ModelNotFound 404  no such model
     |    +-- MethodNotAllowed   405
     |    +-- Conflict           409  the thing is in another state
     |    +-- BodyTooLarge       413
     |    +-- UnsupportedMedia   415  content type or coding
     |    +-- Misdirected        421  a Host that this server does not answer for
     |    +-- HeadersTooLarge    431  too many of them
     |    +-- RateLimited        429  try again later, see `retry_after`
     +-- EngineError             500  the engine failed; never the client's fault
          +-- Overloaded         503  no capacity now, see `retry_after`
          +-- EngineTimeout      504  the engine took longer than it may
          +-- ConnectionCut      500  asked for by a plan of faults: a stream breaks off without a word

An error raised before `Started` becomes an HTTP status; after it, the dialect's own terminal event.
"""

from __future__ import annotations


class DragomanError(Exception):
    """Base of all errors that a dialect can render."""

    status = 500
    code: str | None = None
    retry_after: float | None = None
    """Seconds after which the same request may succeed; sent as `Retry-After`."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        if retry_after is not None:
            self.retry_after = retry_after


class RequestError(DragomanError):
    """The request cannot be served as asked. `param` names the offending field, dotted (`messages.0.role`)."""

    status = 400


class Unsupported(RequestError):
    """Understood, but not possible here. Said instead of being ignored in silence."""

    code = "unsupported_parameter"


class ContextTooLong(RequestError):
    """The prompt does not fit; the wording is what LangChain and LiteLLM match on."""

    code = "context_length_exceeded"

    def __init__(self, *, limit: int, prompt: int, at_least: bool = False, param: str | None = None) -> None:
        qualifier = "at least " if at_least else ""
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your prompt has "
            f"{qualifier}{prompt} tokens. Please reduce the length of the prompt.",
            param=param,
        )
        self.limit, self.prompt, self.at_least = limit, prompt, at_least


class AuthenticationError(RequestError):
    status, code = 401, "invalid_api_key"


class PermissionDenied(RequestError):
    status, code = 403, "permission_denied"


class NotFound(RequestError):
    status = 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """A method that a path does not support.

    allowed: the methods that it supports; every 405 lists them in `Allow` (RFC 9110, section 15.5.6).
    """

    status = 405

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class Conflict(RequestError):
    status = 409


class BodyTooLarge(RequestError):
    status = 413


class UnsupportedMediaType(RequestError):
    status = 415


class MisdirectedRequest(RequestError):
    status = 421


class HeadersTooLarge(RequestError):
    """There are too many of them, or they are too long."""

    status = 431


class RateLimited(RequestError):
    status, code, retry_after = 429, "rate_limit_exceeded", 1.0


class EngineError(DragomanError):
    """The engine failed. The message is for the client; details go to the log."""

    code = "engine_error"


class Overloaded(EngineError):
    status, code, retry_after = 503, "overloaded", 1.0


class QueueFull(Overloaded):
    """So many wait for an engine that no more may, until one of them leaves."""


class EngineTimeout(EngineError):
    status, code = 504, "timeout"


class ConnectionDropped(EngineError):
    """Not a terminal event but none: the connection is closed, as by a crash between client and server."""

    code = "connection_cut"
