"""The process that llama.cpp runs in, and a client of it: what every engine over it starts, ends and watches."""

from __future__ import annotations

import asyncio

from ...core.errors import EngineError
from .client import Client
from .process import Process


class Link:
    """Closed at first, also over a process that runs already."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Raises EngineError while it is closed."""
        if self._client is None:
            raise EngineError("The engine is not running.")
        return self._client

    @property
    def open(self) -> bool:
        return self._client is not None

    @property
    def broken(self) -> bool:
        """It is open, to a process that has ended."""
        return self.open and not self._process.alive

    @property
    def trouble(self) -> str | None:
        """Why nothing can be asked."""
        if not self.open:
            return "the engine is not running"
        return "llama.cpp's process has ended" if self.broken else None

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def start(self) -> None:
        if not self._process.alive:
            await asyncio.to_thread(self._process.start)
        self._client = Client(self._process.socket, self._process.key)

    async def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await asyncio.to_thread(self._process.stop)
