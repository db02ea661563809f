"""The route by which an administrator lets a simulated server's port refuse, reset or keep silent. Knows no socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from ..core.errors import NotFound, RequestError
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Whole
from .listening import Listening, Order, PortState
from .orders import body


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    return {"/dragoman/listener": (Access.ADMIN, {"GET": show, "PUT": order, "POST": order})}


class _States(Struct, frozen=True):
    ports: Sequence[PortState]


async def show(http: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode(_States(_listening(http).states())))


async def order(http: Http) -> Whole | Answer:
    """One order, or a list of them."""
    listening = _listening(http)
    await listening.order(_read(await body(http, object)), http.client)
    return await show(http)


def _read(asked: object) -> list[Order]:
    """Raises RequestError."""
    try:
        return msgspec.convert(asked if isinstance(asked, list) else [asked], list[Order])
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None


def _listening(http: Http) -> Listening:
    listening = http.service.listening
    if listening is None:
        raise NotFound("Only a simulated server on a port supports listener states.", code="unsupported_endpoint")
    return listening
