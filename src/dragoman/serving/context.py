"""The context of a request, whether it comes over HTTP or as a frame of a WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from ..telemetry import Span
from .auth import Caller
from .file_store import OwnerFiles
from .request_log import RequestLogLine
from .service import Service


class RequestHeaders(Headers):
    """The headers of a request, by name; `get` and `getlist` take names in lower case.

    A request looks up a dozen names, most of them absent; each lookup of the base class compares all headers.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        # The first of several with one name, as the base class has it.
        self._first = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self._list)}
        # Without a call of Python for each lookup.
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
    """An HTTP request, or a WebSocket connection that carries several requests."""

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
    """Query parameters that record the names for which a handler has looked, in `read`."""

    def __init__(self, query_string: bytes, read: set[str]) -> None:
        super().__init__(query_string)
        self._read = read

    def __getitem__(self, key: str) -> str:
        self._read.add(key)
        return super().__getitem__(key)

    def getlist(self, key: str) -> list[str]:
        self._read.add(key)
        return super().getlist(key)

    def multi_items(self) -> list[tuple[str, str]]:
        self._read.update(self.keys())
        return super().multi_items()

    def select(self, is_wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
        """The names and values whose names are wanted."""
        selected = [(name, value) for name, value in super().multi_items() if is_wanted(name)]
        self._read.update(name for name, _ in selected)
        return selected


class RequestRecord:
    """Facts of a request when its response begins or has ended, for headers and the access log.

    owner: whose limits the response's headers report.
    arrival_time: when its JSON body was complete, on the event loop's clock; None without one.
    call: its last call that used a model; None if there was none, or if nothing observes calls.
    span: of the request; None if it is not traced.
    read_query: names of query parameters that its handler has looked for.
    """

    __slots__ = ("arrival_time", "call", "owner", "read_query", "span")

    def __init__(self) -> None:
        self.owner = ""
        self.arrival_time: float | None = None
        self.span: Span | None = None
        self.read_query: set[str] = set()
        self.call: RequestLogLine | None = None


def build_owner_files(context: RequestContext) -> OwnerFiles:
    """The files that the request can refer to."""
    return OwnerFiles(context.service.store, context.caller.owner)
