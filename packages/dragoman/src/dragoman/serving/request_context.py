"""The context of a request, over HTTP or a WebSocket connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from ..telemetry.spans import Span
from .auth import Caller
from .file_store import OwnerFiles
from .request_log import RequestLogLine
from .service import Service


class RequestHeaders(Headers):
    """The headers of a request, by name; `get` and `getlist` need lower-case names.

    A request looks up a dozen names, most of them absent; each lookup of the base class
    compares all headers.
    """

    def __init__(self, scope: Scope) -> None:
        # As the base class does, without its call.
        self._list = fields = scope["headers"] = list(scope["headers"])
        # Of repeated headers the first wins, as in the base class.
        self._first = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(fields)
        }
        # dict.get is implemented in C; overriding `get` would add a Python call to each
        # lookup.
        self.get = self._first.get  # pyright: ignore[reportAttributeAccessIssue]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._first

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def getlist(self, key: str) -> list[str]:
        if key not in self._first:
            return []
        # Nearly always each name occurs once.
        return [self._first[key]] if len(self._first) == len(self._list) else super().getlist(key)


class RequestContext(Protocol):
    """What handlers know about the sender: an HTTP request, or a WebSocket connection
    that carries several requests.
    """

    @property
    def service(self) -> Service: ...

    @property
    def caller(self) -> Caller: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def id(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def client_host(self) -> str | None: ...

    @property
    def record(self) -> RequestRecord: ...


class TrackedQuery(QueryParams):
    """Query parameters that add each name that a handler looks up to `accessed`."""

    def __init__(self, query_string: bytes, accessed: set[str]) -> None:
        super().__init__(query_string)
        self._accessed = accessed

    def __getitem__(self, key: str) -> str:
        self._accessed.add(key)
        return super().__getitem__(key)

    def getlist(self, key: str) -> list[str]:
        self._accessed.add(key)
        return super().getlist(key)

    def multi_items(self) -> list[tuple[str, str]]:
        self._accessed.update(self.keys())
        return super().multi_items()

    def select(self, is_wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
        """The names and values whose names are wanted."""
        selected = [(name, value) for name, value in super().multi_items() if is_wanted(name)]
        self._accessed.update(name for name, _ in selected)
        return selected


class RequestRecord(Struct):
    """The data about a request that is kept until the end of its response, for response
    headers, metrics and the access log. A stream can last for hours, so this holds
    neither the body nor the headers.

    id, started_at, path, client: as in `HttpRequest`.
    content_length: bytes of the body according to Content-Length; 0 if absent.
    owner: the owner whose rate limits the response headers report.
    body_received_at: when its JSON body was complete, on the event loop's clock; None
        without one.
    call: its last call that used a model; None if there was none, or if nothing
        observes calls.
    span: of the request; None if it is not traced.
    read_query: names of query parameters that its handler has looked for; None if it
        has looked for none: most requests have no query, and an empty set takes 216
        bytes of each stream.
    """

    id: str = ""
    started_at: float = 0.0
    path: str = ""
    client: tuple[str, int] | None = None
    content_length: int = 0
    owner: str = ""
    body_received_at: float | None = None
    span: Span | None = None
    read_query: set[str] | None = None
    call: RequestLogLine | None = None


def build_owner_files(context: RequestContext) -> OwnerFiles:
    """The files that the request can refer to."""
    return OwnerFiles(context.service.store, context.caller.owner)
