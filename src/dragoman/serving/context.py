"""The context of a request, whether it comes over HTTP or as a frame of a WebSocket."""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers

from ..telemetry import Span
from .auth import Caller
from .file_store import OwnerFiles
from .request_log import RequestLogLine
from .service import Service


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


class RequestRecord:
    """What is known of a request when its response begins or has ended, for headers and the access log.

    owner: whose limits the response's headers report.
    arrival_time: when its JSON body was complete, on the event loop's clock; None without one.
    call: its last call that used a model; None if there was none, or if nothing observes calls.
    span: of the request; None if it is not traced.
    """

    __slots__ = ("arrival_time", "call", "owner", "span")

    def __init__(self) -> None:
        self.owner = ""
        self.arrival_time: float | None = None
        self.span: Span | None = None
        self.call: RequestLogLine | None = None


def build_owner_files(context: RequestContext) -> OwnerFiles:
    """The files that the request can refer to."""
    return OwnerFiles(context.service.store, context.caller.owner)
