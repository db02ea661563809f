"""A route and everything that is the same for all of them: Host, key, method, errors in the dialect's envelope, log.

Pure ASGI: nothing wraps `send`, so that a streamed token costs no middleware.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from ..core.errors import DragomanError, MethodNotAllowed, NotFound, UnsupportedMedia
from ..dialects.body import echo
from ..http.leaving import Watch
from ..pipeline.engine_calls import contain
from .answer import Answer, Opening, Outcome, RawHeaders, unexpected
from .auth import Access, Caller
from .body import ClientGone, Share, read_body
from .host import check_headers
from .service import Service

log = logging.getLogger("dragoman.access")

_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Envelope:
    """How a dialect writes an error. body: of an error and the request's id. status: the HTTP status it has there."""

    body: Callable[[DragomanError, str], bytes]
    status: Callable[[DragomanError], int]


EnvelopeOf = Callable[[str, Mapping[str, str]], Envelope]
"""By the path, and the headers of the request."""


@dataclass(frozen=True, slots=True)
class Http:
    """One HTTP request as a handler sees it. watch: tells that its client has left. client: the address that it comes
    from, where there is one.

    share: what its body takes of the memory for all of them.
    """

    service: Service
    caller: Caller
    headers: Headers
    path_params: Mapping[str, str]
    id: str
    began: float
    envelope: Envelope
    receive: Receive
    watch: Watch
    query_string: bytes
    path: str
    share: Share
    client: tuple[str, int] | None = None

    @property
    def query(self) -> QueryParams:
        return QueryParams(self.query_string)

    @property
    def length(self) -> int:
        """Bytes of the body, by its own word."""
        told = self.headers.get("content-length", "")
        return int(told[:19]) if told.isdecimal() else 0

    async def json(self) -> bytes:
        """The body of a POST. Only JSON, and said to be JSON: a browser sends that across origins only after a
        preflight, but a body without a type at once. No body needs no type.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = kind == "application/json" or kind.endswith("+json")
        if not is_json and (kind or self.length or "transfer-encoding" in self.headers):
            raise UnsupportedMedia("Send the body as `Content-Type: application/json`.")
        return await read_body(self.receive, self.headers, self.service.options.max_body_bytes, self.share)

    def head(self, content_type: tuple[bytes, bytes] = JSON, warnings: Sequence[str] = ()) -> RawHeaders:
        """The headers of this request's answer."""
        elapsed = (self.service.clock.monotonic() - self.began) * 1000
        head = [
            content_type,
            (b"x-request-id", self.id.encode()),
            (b"request-id", self.id.encode()),
            (b"openai-processing-ms", str(round(elapsed)).encode()),
            (b"openai-version", b"2020-10-01"),
        ]
        if warnings:
            head.append((b"x-dragoman-warnings", header_text("; ".join(warnings))))
        head += self.service.options.origins.head(self.headers)
        if self.service.models.closed:
            # Whoever comes again had better come to another server.
            head.append((b"connection", b"close"))
        return head

    def opening(self, headers: RawHeaders, wait: float | None = None) -> Opening:
        """Of an answer to it. wait: None is as long as for one that may still be refused."""
        return Opening(headers, self.service.options.patience.headers if wait is None else wait, self.refusal)

    def refusal(self, error: DragomanError) -> tuple[int, RawHeaders, bytes]:
        head = self.head()
        if error.retry_after is not None:
            head.append((b"retry-after", str(max(1, round(error.retry_after))).encode()))
        if error.status == 401:
            head.append((b"www-authenticate", b"Bearer"))
        return self.envelope.status(error), head, self.envelope.body(error, self.id)


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that is made at once. warnings: what of the request was ignored."""

    body: bytes
    status: int = 200
    content_type: tuple[bytes, bytes] = JSON
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error on a path that several dialects share: the body told which of them it is."""

    error: DragomanError
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Complete:
    """An answer that is known to its last byte. length: of its body, also where that is left out."""

    status: int
    headers: RawHeaders
    body: bytes
    length: int
    error: DragomanError | None = None

    async def __call__(self, _: Watch, send: Send) -> Outcome:
        size = (b"content-length", str(self.length).encode())
        await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers, size]})
        await send({"type": "http.response.body", "body": self.body})
        return Outcome(self.status, self.length, self.error)


Made = Whole | Answer | Refusal | Complete
Handler = Callable[[Http], Awaitable[Made]]


class Endpoint:
    """One path. handlers: by method; HEAD is GET without its body. envelope: that of a path's dialect."""

    def __init__(
        self,
        path: str,
        access: Access,
        handlers: Mapping[str, Handler],
        service: Service,
        envelope: EnvelopeOf,
    ) -> None:
        self.path, self.access, self.handlers = path, access, handlers
        self._service, self._envelope = service, envelope

    def visit(self, scope: Scope, receive: Receive, watch: Watch) -> Visit:
        return Visit(self, http_of(scope, receive, watch, self._service, self._envelope), scope["method"])

    async def handle(self, http: Http, method: str) -> Made:
        """Raises DragomanError and ClientGone."""
        check_headers(http.headers, self._service.allowed_hosts)
        origins = self._service.options.origins
        if self.access is not Access.PUBLIC:
            is_admin = self.access is Access.ADMIN
            reads = method in ("GET", "HEAD") and not is_admin
            origins.check(http.headers, named=is_admin, allow_navigation=reads)
        told = origins.preflight(method, http.headers, self.handlers)
        if told is not None:
            return Complete(200, [*http.head(), *told], b"", 0)
        caller = self._service.keyring.admit(http.headers, self.access)
        handler = self.handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join(self.handlers)
            raise MethodNotAllowed(f"{method} is not allowed on {self.path}; use {allowed}.")
        try:
            return await handler(replace(http, caller=caller))
        finally:
            # While the answer is sent nothing is left of the body.
            http.share.give_back()

    def note(self, visit: Visit, outcome: Outcome) -> None:
        """What is told of a request when it is over."""
        service = self._service
        elapsed = service.clock.monotonic() - visit.began
        service.http_meter.note(visit.method, self.path, outcome.status, elapsed, visit.length, outcome.length)
        if service.options.access_log:
            shown = visit.path.encode("unicode_escape").decode()[:200]
            log.info(
                "%s %s %s %s %d %.1fms",
                show_address(visit.client),
                visit.id,
                visit.method,
                shown,
                outcome.status,
                elapsed * 1000,
            )


class Visit:
    """A request from its coming until its answer is over: `answer`, then `over`.

    From when there is an answer nothing is kept of the request but what will be told of it.
    """

    __slots__ = ("_endpoint", "_http", "began", "client", "id", "length", "method", "path")

    def __init__(self, endpoint: Endpoint, http: Http, method: str) -> None:
        self._endpoint, self._http, self.method = endpoint, http, method
        self.id, self.path, self.began, self.length = http.id, http.path, http.began, http.length
        self.client = http.client

    async def answer(self) -> Answer | Complete:
        """Raises ClientGone."""
        http, self._http = self._http, None
        assert http is not None
        return answer_of(http, await make(self._endpoint.handle(http, self.method)), body=self.method != "HEAD")

    def over(self, outcome: Outcome) -> None:
        self._endpoint.note(self, outcome)


def http_of(scope: Scope, receive: Receive, watch: Watch, service: Service, envelope: EnvelopeOf) -> Http:
    """The request as it came; nobody knows yet whose it is."""
    headers = Headers(scope=scope)
    return Http(
        service,
        Caller(),
        headers,
        scope.get("path_params", {}),
        _request_id(headers, service),
        service.clock.monotonic(),
        envelope(scope["path"], headers),
        receive,
        watch,
        scope.get("query_string", b""),
        scope["path"],
        Share(service.bodies),
        scope.get("client"),
    )


async def make(handling: Awaitable[Made]) -> Made | DragomanError:
    """What a handler makes, or what refuses it. Raises ClientGone."""
    task = asyncio.current_task()
    try:
        return await handling
    except DragomanError as error:
        return error
    except ClientGone:
        raise
    except BaseException as error:
        failure = contain(error, task)
        if not isinstance(failure, Exception):
            raise
        return failure if isinstance(failure, DragomanError) else unexpected(failure)


def answer_of(http: Http, made: Made | DragomanError, *, body: bool = True) -> Answer | Complete:
    """An error is told in the dialect's envelope. body: False leaves it out."""
    if isinstance(made, Answer | Complete):
        return made
    if isinstance(made, Refusal):
        http, made = replace(http, envelope=made.envelope), made.error
    if isinstance(made, DragomanError):
        status, headers, said = http.refusal(made)
        return Complete(status, headers, said if body else b"", len(said), made)
    head = http.head(made.content_type, made.warnings)
    return Complete(made.status, head, made.body if body else b"", len(made.body))


def not_found(service: Service, envelope: EnvelopeOf, known: Sequence[str]) -> Endpoint:
    """What answers where no route is. It asks for a key too, so that it tells strangers nothing."""

    async def refuse(http: Http) -> Whole:
        meant = _meant(http.path.rstrip("/"), known)
        hint = "See the documentation for the available routes." if meant is None else f"Did you mean {meant}?"
        raise NotFound(f"No such route: {echo(http.path)}. {hint}")

    methods = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return Endpoint("*", Access.USER, dict.fromkeys(methods, refuse), service, envelope)


def _meant(path: str, known: Sequence[str]) -> str | None:
    """Of these routes the one of a client whose base URL lacks its end, or has it twice, or is a whole route."""
    tails = {route.removeprefix("/v1"): route for route in known}
    return next(
        (
            route
            for tail, route in tails.items()
            if path == tail or path.endswith(route) or (path.endswith(tail) and path.removesuffix(tail) in known)
        ),
        None,
    )


def show_address(client: tuple[str, int] | None) -> str:
    """A client's address and port for the access log; `-` where it has none, as over a Unix socket."""
    if client is None or not client[0]:
        return "-"
    host, port = client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def header_text(text: str) -> bytes:
    """Fit for a header: printable ASCII, bounded."""
    return text.encode("ascii", "replace").translate(_UNPRINTABLE)[:2048]


_UNPRINTABLE = bytes(byte if 32 <= byte < 127 else ord("?") for byte in range(256))


def _request_id(headers: Headers, service: Service) -> str:
    given = headers.get("x-request-id", "")
    return given if _PLAIN_ID.fullmatch(given) else service.ids.new("req_")
