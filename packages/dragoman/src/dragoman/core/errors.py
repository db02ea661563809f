"""The errors that a client can receive. Dialects serialize them.

    DragomanError
     +-- RequestError              400  the request is invalid or cannot be served
     |    +-- Unsupported          400  valid, but this engine or server does not support it
     |    +-- ContextTooLong       400  prompt (and max_tokens) exceed the context length
     |    +-- AuthenticationError  401  missing or unknown API key
     |    +-- PermissionDenied     403  the key is valid but not authorized
     |    +-- NotFound             404  no such route or object
     |    |    +-- ModelNotFound   404  no such model
     |    +-- MethodNotAllowed     405
     |    +-- Conflict             409  the object's state does not permit the operation
     |    +-- BodyTooLarge         413
     |    +-- UnsupportedMediaType 415  content type or content coding
     |    +-- MisdirectedRequest   421  a Host that this server does not serve
     |    +-- HeadersTooLarge      431
     |    +-- RateLimited          429  retry later, see `retry_after`
     |         +-- BudgetExhausted 429  the key's tokens of the day or month are used up
     +-- EngineError               500  the engine failed; never the client's fault
          +-- Overloaded           503  no capacity now, see `retry_after`
          |    +-- QueueFull       503
          +-- NotStarted           500  the application has not been started; a retry does not help
          +-- EngineTimeout        504  the engine exceeded its deadline
          +-- ConnectionDropped    500  an injected fault: the connection closes without a terminal event

An error raised before `Started` becomes an HTTP status; a later one becomes the
dialect's own terminal event.
"""  # noqa: E501

from __future__ import annotations


class DragomanError(Exception):
    """Base of all errors that a dialect can render.

    Attributes:
        status: HTTP status of an error that is raised before the response starts.
        code: OpenAI's error code.
        message: the text for the client.
        param: the field that is wrong, as a dotted path (`messages.0.role`).
    """

    status = 500
    code: str | None = None
    retry_after: float | None = None
    """Seconds after which the same request may succeed; sent as `Retry-After`."""
    should_retry = True
    """Whether SDKs may send the request again; otherwise `x-should-retry: false` is sent."""
    is_translated = False
    """Whether `param` is the client's name of the field. Otherwise it is the core's,
    which a dialect may rename.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        if retry_after is not None:
            self.retry_after = retry_after


class RequestError(DragomanError):
    """The request is invalid or cannot be served. `param` is the dotted path of the
    field (`messages.0.role`).
    """

    status = 400


class Unsupported(RequestError):
    """The request is valid but not supported here. Raised because parameters are never
    ignored silently.
    """

    code = "unsupported_parameter"


class ContextTooLong(RequestError):
    """The prompt exceeds the context length. LangChain and LiteLLM match on this
    wording.

    Attributes:
        limit: the context length in tokens.
        prompt: tokens of the prompt.
        at_least: the prompt has `prompt` tokens or more.
    """

    code = "context_length_exceeded"

    def __init__(
        self, *, limit: int, prompt: int, at_least: bool = False, param: str | None = None
    ) -> None:
        qualifier = "at least " if at_least else ""
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your prompt has "
            f"{qualifier}{prompt} tokens. Please reduce the length of the prompt.",
            param=param,
        )
        self.limit = limit
        self.prompt = prompt
        self.at_least = at_least


class AuthenticationError(RequestError):
    status = 401
    code = "invalid_api_key"


class PermissionDenied(RequestError):
    status = 403
    code = "permission_denied"


class NotFound(RequestError):
    status = 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """A method that a path does not support.

    allowed: the methods that it supports; every 405 lists them in `Allow` (RFC 9110,
        section 15.5.6).
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
    """The request has too many headers, or they are too long."""

    status = 431


class RateLimited(RequestError):
    """A rate limit was reached.

    limit: the limited quantity, which OpenAI's errors have as `type` (`requests`,
        `tokens`); None if unknown.
    """

    status = 429
    code = "rate_limit_exceeded"
    retry_after = 1.0
    limit: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        limit: str | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code, retry_after=retry_after)
        if limit is not None:
            self.limit = limit


class BudgetExhausted(RateLimited):
    """The budget of the day or month is used up. Retries fail until it ends, so clients
    should not retry.
    """

    code = "insufficient_quota"
    limit = "insufficient_quota"
    should_retry = False


class EngineError(DragomanError):
    """The engine failed. The message is sent to the client; details are logged."""

    code = "engine_error"


class ProcessUnusable(EngineError):
    """The engine cannot work again in this process, for example since its CUDA context
    is lost; in a new process it may.
    """


class Overloaded(EngineError):
    """The request is rejected because too many others are waiting."""

    status = 503
    code = "overloaded"
    retry_after = 1.0


class QueueFull(Overloaded):
    """The engine's queue is at its limit."""


class NotStarted(EngineError):
    """The application has not been started: an error in the program that embeds it.
    Clients should not retry.
    """

    code = "not_started"
    should_retry = False


class EngineTimeout(EngineError):
    status = 504
    code = "timeout"


class ConnectionDropped(EngineError):
    """An injected fault: the connection is closed without a terminal event, as if the
    server had crashed.
    """

    code = "connection_cut"
