"""Internal requests: calls of a route's handler without a socket, at background
priority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Message

from .auth import Caller
from .body_memory import BodyMemoryShare
from .disconnect import ignore_disconnect
from .handler_result import build_response, call_handler
from .http_request import WARNINGS_HEADER, HttpRequest
from .route import Route
from .service import Service, restrict_service


class InternalResponse(Struct, frozen=True):
    """The response to an internal request.

    id: the id of the request.
    """

    status: int
    id: str
    body: bytes


class InternalClient:
    """Sends POST requests with JSON bodies to the handlers of routes with a literal
    path, on behalf of an owner.
    """

    def __init__(self, service: Service, routes: Iterable[Route]) -> None:
        self._service = service
        self._routes = {route.path: route for route in routes if "POST" in route.operations}

    async def __call__(self, caller: Caller, path: str, body: bytes) -> InternalResponse:
        """Call a handler. Errors of the request become a status, not an exception.
        Cancellation frees the engine.
        """
        # The endpoint's checks are skipped: the owner was authenticated when the job
        # was created.
        connection = _InMemoryConnection(body)
        route = self._routes[path]
        service = restrict_service(self._service, caller)
        http = HttpRequest(
            service,
            msgspec.structs.replace(caller, is_background=True),
            # The headers of the response are dropped, so it must carry the warnings in
            # its body.
            Headers({"content-type": "application/json", WARNINGS_HEADER: "body"}),
            {},
            service.ids.new("req_"),
            service.clock.monotonic(),
            route.envelope,
            connection.receive,
            ignore_disconnect,
            b"",
            path,
            BodyMemoryShare(service.body_budget, caller.owner),
        )
        try:
            result = await call_handler(route.operations["POST"].handler(http))
        finally:
            # As `Endpoint.handle` does for requests over HTTP.
            http.body_memory.release()
        await build_response(http, result)(ignore_disconnect, connection.send)
        return InternalResponse(connection.status, http.id, b"".join(connection.chunks))


class _InMemoryConnection:
    """An in-memory connection that never disconnects."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.chunks: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            # Behave like a client that stays connected and sends nothing more: never
            # return.
            await asyncio.get_running_loop().create_future()
        body = self._body
        self._body = None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.chunks.append(message.get("body", b""))
