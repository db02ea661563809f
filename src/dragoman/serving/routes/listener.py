"""The admin route for port faults of a simulated server. Independent of sockets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Struct

from ...core.errors import NotFound, RequestError
from ..admin_body import decode_body
from ..auth import Access
from ..endpoint import HttpRequest, JsonResponse, Route
from ..envelopes import OPENAI
from ..port_faults import PortCommand, PortController, PortState
from ..streaming import Responder


def build_routes(controller: PortController | None) -> Sequence[Route]:
    """controller: None unless the server is simulated."""
    apply = partial(apply_commands, controller)
    handlers = {"GET": partial(show, controller), "PUT": apply, "POST": apply}
    return (Route("/dragoman/listener", Access.ADMIN, OPENAI, handlers),)


class PortStates(Struct, frozen=True):
    ports: Sequence[PortState]


async def show(controller: PortController | None, _: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(PortStates(_require_controller(controller).states())))


async def apply_commands(controller: PortController | None, http: HttpRequest) -> JsonResponse | Responder:
    """Apply one command or a list of them."""
    required, body = _require_controller(controller), await decode_body(http, object)
    try:
        commands = msgspec.convert(body if isinstance(body, list) else [body], list[PortCommand])
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None
    await required.apply(commands, http.client)
    return await show(required, http)


def _require_controller(controller: PortController | None) -> PortController:
    if controller is None:
        raise NotFound("Only a simulated server on a port supports listener states.", code="unsupported_endpoint")
    return controller
