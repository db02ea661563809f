"""An engine and its front ends on a real socket, but in one process."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dragoman.engines.remote import EngineClient, EngineServer, HostedAdapters, HostedEngine
from dragoman.launch.hosted_model import HostedModel, build_front_end_model, host_model
from dragoman.launch.model_plan import plan_model
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

NEEDS_FORK = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no processes that share an engine"
)
MODEL = Settings(max_model_len=4096, max_num_seqs=32)


@dataclass(eq=False)
class Split:
    """An engine server with its socket, in the test's process.

    local: the model of the engine server.
    adapters: replace the model's adapters.
    """

    local: ServedModel
    path: str
    listener: socket.socket
    settings: Settings = MODEL
    adapters: HostedAdapters | None = None
    server: EngineServer = field(init=False)

    async def start(self, **options: Any) -> None:
        self.server = EngineServer(self._host(), self.listener, **options)
        await self.server.start()

    def _host(self) -> HostedEngine:
        return replace(host_model(self.local), adapters=self.adapters)

    def build_front_end(self, count: int = 1) -> ServedModel:
        """Return a model whose engine is not connected yet."""
        description = self._host().describe()
        plan = plan_model(self.settings.model)
        hosted = HostedModel(
            description,
            plan.model,
            plan.engine,
            plan.argument,
            self.settings.served_model_name,
            self.local.details,
        )
        client = EngineClient(self.path, description)
        return build_front_end_model(self.settings, SystemClock(), hosted, client, count)

    @asynccontextmanager
    async def front_ends(self, count: int) -> AsyncGenerator[list[ServedModel]]:
        """Yield this number of connected front ends."""
        models = [self.build_front_end(count) for _ in range(count)]
        async with AsyncExitStack() as stack:
            for model in models:
                engine = model.backend.engine
                await engine.start()
                stack.push_async_callback(engine.stop)
            yield models


@asynccontextmanager
async def split(local: ServedModel, settings: Settings = MODEL) -> AsyncGenerator[Split]:
    """Run an engine server."""
    with TemporaryDirectory() as folder, closing(socket.socket(socket.AF_UNIX)) as listener:
        path = str(Path(folder) / "engine.sock")
        listener.bind(path)
        listener.listen()
        running = Split(local, path, listener, settings)
        await running.start()
        yield running
        await running.server.stop()
        local.close_workers()


@asynccontextmanager
async def remote(models: Models, settings: Settings = MODEL) -> AsyncGenerator[Models]:
    """Yield the first of these models behind a socket.

    settings: the settings that it was built from.
    """
    async with split(next(iter(models)), settings) as running:
        served = Models([running.build_front_end()])
        await served.start()
        yield served
        await served.stop()
