"""One ASGI application for several servers in a process, by the port of a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.types import Receive, Scope, Send

from ..serving.app import Application
from ..serving.lifespan import serve_lifespan


class PortDispatcher:
    """An ASGI application that dispatches requests by the server's port. All its
    applications share one lifespan.
    """

    def __init__(self, applications: Mapping[int | None, Application]) -> None:
        self._applications = applications

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await serve_lifespan(self.lifespan_context(), receive, send)
        else:
            await self._applications[scope["server"][1]](scope, receive, send)

    @asynccontextmanager
    async def lifespan_context(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for application in self._applications.values():
                await stack.enter_async_context(application.lifespan())
            yield
