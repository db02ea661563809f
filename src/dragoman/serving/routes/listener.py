"""The admin route for port faults of a simulated server. Independent of sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from ...core.errors import NotFound, RequestError
from ..admin_body import decode_body
from ..auth import Access
from ..endpoint import Handler, HttpRequest, JsonResponse
from ..port_faults import PortCommand, PortController, PortState
from ..streaming import Responder


def build_routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    return {"/dragoman/listener": (Access.ADMIN, {"GET": show, "PUT": apply_commands, "POST": apply_commands})}


class _States(Struct, frozen=True):
    ports: Sequence[PortState]


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(_States(_find_port_controller(http).states())))


async def apply_commands(http: HttpRequest) -> JsonResponse | Responder:
    """Apply one command or a list of them."""
    controller = _find_port_controller(http)
    await controller.apply(_parse_commands(await decode_body(http, object)), http.client)
    return await show(http)


def _parse_commands(value: object) -> list[PortCommand]:
    """Raises RequestError: a command is malformed."""
    try:
        return msgspec.convert(value if isinstance(value, list) else [value], list[PortCommand])
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None


def _find_port_controller(http: HttpRequest) -> PortController:
    controller = http.service.port_controller
    if controller is None:
        raise NotFound("Only a simulated server on a port supports listener states.", code="unsupported_endpoint")
    return controller
