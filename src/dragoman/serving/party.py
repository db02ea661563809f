"""Who asks, and whom: what a request over HTTP and one of several over a connection have in common."""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers

from .auth import Caller
from .file_store import Owned
from .service import Service


class Party(Protocol):
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


def files_of(party: Party) -> Owned:
    """Those that it may name."""
    return Owned(party.service.store, party.caller.owner)
