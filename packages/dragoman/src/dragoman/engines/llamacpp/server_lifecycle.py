"""The lifecycle and health of a llama.cpp process, which all engines over it share."""

from __future__ import annotations

import asyncio

from ...core.errors import EngineError
from .client import LlamaCppClient
from .process import LlamaCppProcess


class LlamaCppConnection:
    """A llama.cpp process and its client: the lifecycle and health that all engines
    over it share. Initially closed.
    """

    def __init__(self, process: LlamaCppProcess) -> None:
        self._process = process
        self._client: LlamaCppClient | None = None
        self._is_restarting = False

    @property
    def client(self) -> LlamaCppClient:
        """The client. Raises EngineError while closed."""
        if self._client is None:
            raise EngineError("The engine is not running.")
        return self._client

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def is_broken(self) -> bool:
        """Whether the connection is open but the process has ended by itself."""
        return self.is_open and not self._is_restarting and not self._process.is_alive

    @property
    def problem(self) -> str | None:
        """Why requests cannot be sent; None if they can."""
        if not self.is_open:
            return "the engine is not running"
        if self._is_restarting:
            return "llama.cpp is being started again"
        return "llama.cpp's process has ended" if self.is_broken else None

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def start(self) -> None:
        if not self._process.is_alive:
            await asyncio.to_thread(self._process.start)
        self._client = LlamaCppClient(self._process.socket, self._process.key)

    async def restart(self) -> None:
        """Replace the process, while the connection counts as open. Requests to the old
        one fail. Raises EngineError if the new one cannot load the model.
        """
        self._is_restarting = True
        try:
            await self.client.close()
            await asyncio.to_thread(self._process.start)
            self._client = LlamaCppClient(self._process.socket, self._process.key)
        finally:
            self._is_restarting = False

    async def stop(self) -> None:
        client = self._client
        self._client = None
        if client is not None:
            await client.close()
        await asyncio.to_thread(self._process.stop)
