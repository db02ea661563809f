"""A replica on Ray Serve: runs the server's ASGI application in a Ray process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..launch.configured_models import build_models, format_error
from ..launch.logs import configure_logging
from ..launch.server_assembly import AssembledServer, assemble_server
from ..serving.routes.health import find_unready_model
from ..settings import Settings, SettingsError
from .autoscaling import REQUESTS, measure_load
from .load_estimates import ENDED, LOAD
from .replica_tag import TaggedIdGenerator
from .state_home import StateHome

log = logging.getLogger(__name__)

STATE_CHECK_INTERVAL = 0.1
"""Seconds between two checks: of the models at the start, and of unfinished work at the
end.
"""


class Replica:
    """The class of the replicas' deployment. Ray calls its methods by name, on the
    application's event loop.

    settings: the resolved settings, the same for all replicas.
    secret: encrypts and signs reasoning, the same for all replicas.
    home: the node on which replicas must run.
    """

    def __init__(self, settings: Settings, secret: bytes, home: StateHome) -> None:
        node = import_module("ray").get_runtime_context().get_node_id()
        if home.node is not None and home.node != node:
            raise SettingsError(f"this replica is on another node than the first: {home.reason}")
        self._settings = settings
        self._secret = secret
        self._server: AssembledServer | None = None
        self._application: ReplicaApplication | None = None

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Load the models, and return the application that serves them."""
        configure_logging(self._settings)
        context = import_module("ray.serve").get_replica_context()
        ids = TaggedIdGenerator(context.replica_id.unique_id)
        self._server = await asyncio.to_thread(
            assemble_server, self._settings, self._secret, build=build_models, ids=ids
        )
        self._application = ReplicaApplication(self._server, self._settings.ray.drain_timeout)
        return self._application

    async def check_health(self) -> None:
        """Raise RuntimeError if Ray should replace the replica: an engine hangs or does
        not recover.
        """
        server = self._server
        if server is not None and not server.models.is_closed:
            unready = find_unready_model(server.models, self._settings.progress_timeout)
            if unready is not None and not any(slot.is_starting for slot in server.models.slots):
                raise RuntimeError(f"{unready.model}: {unready.reason}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {} if self._server is None else measure_load(self._server.models)

    async def record_routing_stats(self) -> dict[str, Any]:
        server = self._server
        application = self._application
        if server is None or application is None:
            return {}
        # The engines also count background responses, the application also requests
        # that have not reached an engine.
        load = max(measure_load(server.models)[REQUESTS], application.started - application.ended)
        return {LOAD: load, ENDED: application.ended}


class ReplicaApplication:
    """The application of a replica: completes its startup once the models are loaded,
    and drains before it stops.
    """

    def __init__(self, server: AssembledServer, drain_timeout: float) -> None:
        self._server = server
        self._drain_timeout = drain_timeout
        self._start_failure: str | None = None
        self.started = self.ended = 0
        """Numbers of POST requests, which the router counts as load."""
        server.models.on_start_failure = self._note_start_failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":

            async def receive_when_idle() -> Message:
                message = await receive()
                if message["type"] == "lifespan.shutdown":
                    await self._drain()
                return message

            async def send_when_loaded(message: Message) -> None:
                if message["type"] == "lifespan.startup.complete":
                    # Ray sends requests to a replica as soon as its startup is
                    # complete.
                    await self._wait_until(
                        lambda: not any(slot.is_starting for slot in self._server.models.slots)
                    )
                    if self._start_failure is not None:
                        message = {
                            "type": "lifespan.startup.failed",
                            "message": self._start_failure,
                        }
                await send(message)

            await self._server.application(scope, receive_when_idle, send_when_loaded)
        elif scope.get("method") == "POST":
            # Only requests that generate count; health probes and scrapes of metrics
            # are GETs.
            self.started += 1
            try:
                await self._server.application(scope, receive, send)
            finally:
                self.ended += 1
        else:
            await self._server.application(scope, receive, send)

    def _note_start_failure(self, name: str, error: BaseException) -> None:
        self._start_failure = f"cannot serve {name}: {format_error(error)}"

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        # Polling, because models and engines have no event for these conditions.
        while self._start_failure is None and not condition():  # noqa: ASYNC110
            await asyncio.sleep(STATE_CHECK_INTERVAL)

    async def _drain(self) -> None:
        """Wait until background work has ended. Requests of clients have: Ray waits for
        them before the shutdown.
        """
        models = self._server.models
        models.close()
        try:
            async with asyncio.timeout(self._drain_timeout):
                await self._wait_until(lambda: measure_load(models)[REQUESTS] == 0)
        except TimeoutError:
            log.warning(
                "background work did not finish within %g s and is stopped", self._drain_timeout
            )
