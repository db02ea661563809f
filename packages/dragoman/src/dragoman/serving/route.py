"""A route: a path with its operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from ..dialects.error_envelope import ErrorEnvelope
from ..dialects.json_body import JsonBody
from .api_description import ApiResponse, Form, Query
from .auth import Access
from .handler_result import HandlerResult
from .http_request import HttpRequest

_READING_METHODS = frozenset({"GET", "HEAD", "DELETE"})


class RequestCost(StrEnum):
    """What a request costs of the limits of its key.

    CALL: the handler calls a model, which costs a request and tokens; one that calls
        none costs a request.
    REQUEST: one request.
    READ: one read: the request only shows, deletes or ends what is there.
    """

    CALL = "call"
    REQUEST = "request"
    READ = "read"


Handler = Callable[[HttpRequest], Awaitable[HandlerResult]]


def choose_by_client(vendor: ErrorEnvelope, theirs: Handler, others: Handler) -> Handler:
    """Return the handler of a path that several vendors have.

    vendor: the vendor whose clients `theirs` answers.
    others: handles all other requests.
    """

    async def handle(http: HttpRequest) -> HandlerResult:
        return await (theirs if vendor.is_sent_by_client(http.headers) else others)(http)

    return handle


class Operation(Struct, frozen=True):
    """One method of a route, with its description in the OpenAPI document.

    handler: answers the requests.
    tag: the section of the document.
    responses: the possible responses, except errors.
    bodies: the possible bodies of the request.
    accepts_binary: the body may also be a file.
    generates: the method generates text, so the headers for generation apply.
    is_cached: the response has an ETag, and clients that have this version get a 304.
    envelopes: the error envelopes if the body decides between several; empty means the
        route's envelope.
    cost: what a request costs its key; None is one request, or one read where the
        method only reads or deletes.
    """

    handler: Handler
    tag: str
    summary: str
    responses: tuple[ApiResponse, ...]
    bodies: tuple[JsonBody | type[Struct] | Form, ...] = ()
    is_body_optional: bool = False
    accepts_binary: bool = False
    query: tuple[Query, ...] = ()
    generates: bool = False
    is_cached: bool = False
    envelopes: tuple[ErrorEnvelope, ...] = ()
    description: str = ""
    cost: RequestCost | None = None


class Route(Struct, frozen=True):
    """A path with its operations.

    path: literal, or a pattern such as `/v1/responses/{id}`.
    access: the required access.
    envelope: the format of all its errors, including those of authentication and of the
        method.
    operations: operations by method; HEAD is handled as GET without the body.
    browser_handler: handles the GET of a browser that opens the address; needs no key,
        since browsers cannot send one.
    root: a path without a route of its own; unknown paths below it get this route's
        envelope too.
    """

    path: str
    access: Access
    envelope: ErrorEnvelope
    operations: Mapping[str, Operation]
    browser_handler: Handler | None = None
    root: str | None = None

    def find_cost(self, method: str) -> RequestCost | None:
        """Return what a request costs; None if the route is not limited, because it is
        public or for administrators.
        """
        if self.access is not Access.USER:
            return None
        operation = self.operations["GET" if method == "HEAD" else method]
        default = RequestCost.READ if method in _READING_METHODS else RequestCost.REQUEST
        return operation.cost or default


class RouteGroup:
    """The routes of a module, with what most of them have in common.

    tag, envelope, access: of the routes that do not declare their own.
    """

    def __init__(self, tag: str, envelope: ErrorEnvelope, access: Access = Access.USER) -> None:
        self._tag = tag
        self._envelope = envelope
        self._access = access
        self._routes: dict[str, Route] = {}
        self._operations: dict[str, dict[str, Operation]] = {}
        """The operations of each route, which grow until `build`."""

    def add(
        self,
        methods: str | tuple[str, ...],
        path: str,
        handler: Handler,
        summary: str,
        *responses: ApiResponse,
        bodies: tuple[JsonBody | type[Struct] | Form, ...] = (),
        is_body_optional: bool = False,
        accepts_binary: bool = False,
        query: tuple[Query, ...] = (),
        generates: bool = False,
        is_cached: bool = False,
        envelopes: tuple[ErrorEnvelope, ...] = (),
        description: str = "",
        cost: RequestCost | None = None,
        tag: str | None = None,
        access: Access | None = None,
        envelope: ErrorEnvelope | None = None,
        browser_handler: Handler | None = None,
        root: str | None = None,
    ) -> None:
        """Add an operation, see `Operation`, and the route of its path, see `Route`."""
        operation = Operation(
            handler,
            tag or self._tag,
            summary,
            responses,
            bodies,
            is_body_optional,
            accepts_binary,
            query,
            generates,
            is_cached,
            envelopes,
            description,
            cost,
        )
        operations = self._operations.setdefault(path, {})
        if path not in self._routes:
            self._routes[path] = Route(
                path,
                access or self._access,
                envelope or self._envelope,
                operations,
                browser_handler,
                root,
            )
        names = (methods,) if isinstance(methods, str) else methods
        operations.update(dict.fromkeys(names, operation))

    def build(self) -> Sequence[Route]:
        return tuple(self._routes.values())
