"""The route that reads the keys file again at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Struct

from ...core.errors import Conflict, Overloaded, Unsupported
from ...dialects.openai_errors import OPENAI_ERRORS
from ...tenants import KeyFileError
from ..api_description import response
from ..auth import Access
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..key_reloader import KeyReloader, KeysExchange, KeysReport
from ..responder import Responder
from ..route import Route, RouteGroup

log = logging.getLogger(__name__)


class KeysReloaded(Struct, frozen=True):
    """The keys of the file are in use.

    processes: number of processes of the server that have read them.
    """

    processes: int


def build_routes(keys: KeyReloader | None, exchange: KeysExchange | None) -> Sequence[Route]:
    """Build the route.

    keys: reads the file; None without one.
    exchange: reaches all workers of the server; None if there is one process.
    """
    handler = partial(reload_keys, keys, exchange)
    routes = RouteGroup("Administration", OPENAI_ERRORS, Access.ADMIN)
    routes.add(
        "POST",
        "/dragoman/reload_keys",
        handler,
        "Read the file of API keys again",
        response(KeysReloaded),
    )
    return routes.build()


async def reload_keys(
    keys: KeyReloader | None, exchange: KeysExchange | None, _: HttpRequest
) -> JsonResponse | Responder:
    """Read the keys file again in all processes of the server. The response comes when
    all use it.

    Raises:
        Unsupported: the server has no keys file.
        Conflict: the file cannot be used; the former keys stay valid.
        Overloaded: a process has not responded.
    """
    if keys is None:
        raise Unsupported("This server has no file of keys: start it with --keys-file FILE.")
    report = await (_reload_here(keys) if exchange is None else _reload_everywhere(exchange))
    if report.problem is not None:
        raise Conflict(
            f"The keys were not reloaded, and the former ones stay valid: {report.problem}",
            code="invalid_keys_file",
        )
    if report.late:
        raise Overloaded(
            "These processes have not read the keys, and are replaced unless they do: "
            f"{', '.join(report.late)}.",
            retry_after=1.0,
        )
    return JsonResponse(msgspec.json.encode(KeysReloaded(report.processes)))


async def _reload_here(keys: KeyReloader) -> KeysReport:
    try:
        await keys.reload()
    except KeyFileError as error:
        log.error("keys not reloaded: %s", error)
        return KeysReport(problem=str(error))
    log.info("keys reloaded")
    return KeysReport(processes=1)


async def _reload_everywhere(exchange: KeysExchange) -> KeysReport:
    try:
        return await exchange.reload_keys()
    except ConnectionError as error:
        raise Overloaded(f"Not all processes can be reached: {error}.", retry_after=1.0) from None
