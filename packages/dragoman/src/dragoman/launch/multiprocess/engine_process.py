"""The engine process: one engine that all workers of a server share as its front ends,
controlled by the supervisor.

It starts before the workers. The supervisor holds its listening socket, so front ends
that lose the process can connect at any time, and wait in the accept queue for its
replacement.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import uvicorn
from prometheus_client import CollectorRegistry, ProcessCollector

from ...core.errors import DragomanError
from ...engines.remote import EngineChanges, EngineServer
from ...serving.clock import SystemClock
from ...serving.merged_metrics import MetricFamily
from ...serving.metrics_registry import read_families
from ...settings import Settings
from ..configured_models import format_error
from ..hosted_model import HostedModel, load_hosted_model
from ..model_plan import ModelPlan
from .messages import EngineChanged, EngineReady, StartFailed, Stop
from .supervisor_link import SupervisorLink
from .worker import ENGINE_FAILURE, STARTUP_FAILURE


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The model that the engine process serves, and its socket.

    listener: the listening socket for front ends.
    watchdog_interval: seconds between two keepalive messages to the supervisor.
    inherited: run-time changes that the previous engine process had received; None for
        the first process.
    """

    model: ModelPlan
    settings: Settings
    listener: socket.socket
    watchdog_interval: float
    inherited: EngineChanges | None


def serve_engine(plan: EnginePlan, end: socket.socket) -> int:
    """Load the model and serve it until the supervisor stops the process; return the
    exit code.

    end: this process's end of the socket pair to the supervisor.
    """
    link = SupervisorLink(end, plan.watchdog_interval)
    registry = CollectorRegistry(auto_describe=False)
    # Only CPU, memory and files of this process: the front ends count the requests.
    ProcessCollector(registry=registry)

    def read_metrics() -> Sequence[MetricFamily]:
        return read_families(registry)

    link.provide(read_metrics)
    try:
        hosted, model = load_hosted_model(plan.model, plan.settings, SystemClock())
    except (OSError, ValueError, DragomanError) as error:
        link.report(StartFailed(f"cannot serve {plan.settings.model}: {format_error(error)}"))
        return STARTUP_FAILURE
    # Garbage collections then skip the objects of the model and its libraries, as in a
    # server of one process.
    gc.freeze()
    server = EngineServer(
        hosted,
        plan.listener,
        inherited=plan.inherited,
        on_change=lambda changes: link.report(EngineChanged(changes)),
    )
    loop_factory = uvicorn.Config(_serve_nothing).get_loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_run(server, link, model, plan.watchdog_interval))


async def _serve_nothing() -> None:
    """Do nothing: a placeholder for an application, as only uvicorn's choice of the
    event loop is needed.
    """


async def _run(
    server: EngineServer, link: SupervisorLink, model: HostedModel, watchdog_interval: float
) -> int:
    await link.open()
    try:
        await server.start()
    except DragomanError as error:
        link.report(StartFailed(f"cannot serve {model.model}: {format_error(error)}"))
        return STARTUP_FAILURE
    link.report(EngineReady(model))
    alive = asyncio.create_task(_stay_alive(link, watchdog_interval))
    commands = asyncio.create_task(_wait_for_stop(server, link))
    failure = asyncio.create_task(server.failed.wait())
    await asyncio.wait([commands, failure], return_when=asyncio.FIRST_COMPLETED)
    has_failed = not commands.done()
    alive.cancel()
    if has_failed:
        link.report(StartFailed("the engine has failed"))
        # A normal exit would wait for the engine's threads, one of which may hang.
        os._exit(ENGINE_FAILURE)
    failure.cancel()
    await server.stop()
    return 0


async def _wait_for_stop(server: EngineServer, link: SupervisorLink) -> None:
    """Return at the supervisor's command, or when it has died and the front ends have
    finished their requests.
    """
    while (command := await link.receive()) is not None:
        if isinstance(command, Stop):
            return
    await server.idle.wait()


async def _stay_alive(link: SupervisorLink, interval: float) -> None:
    """Send keepalive messages to the supervisor."""
    while True:
        await asyncio.sleep(interval)
        link.notify_alive()
