"""Who asks, and whom: what a request over HTTP and one of several over a connection have in common."""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers

from .auth import Caller
from .file_store import OwnerFiles
from .service import Service


class RequestContext(Protocol):
    """An HTTP request, or a connection that asks several times."""

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


def build_owner_files(context: RequestContext) -> OwnerFiles:
    """Those that it may name."""
    return OwnerFiles(context.service.store, context.caller.owner)
