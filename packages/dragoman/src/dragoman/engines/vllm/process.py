"""The process that runs vLLM's AsyncLLM: start, health, stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from ...core.engine import Health
from ...core.errors import EngineError
from . import backend
from .backend import AdapterTable, AsyncLLM
from .counters import VllmCounters

log = logging.getLogger(__name__)


class VllmProcess:
    """An AsyncLLM, which runs in this process and in the processes of its engine cores.

    arguments: arguments of vLLM's AsyncEngineArgs.
    adapters: loaded at each start.

    It can be started again after a stop. Requests and caches are lost; counters and
    adapters are kept.
    """

    def __init__(self, arguments: Mapping[str, Any], adapters: AdapterTable) -> None:
        self._arguments = arguments
        self._adapters = adapters
        self.counters = VllmCounters()
        self._llm: AsyncLLM | None = None
        self._failure: str | None = None

    async def start(self) -> None:
        """Start vLLM and load the weights, which may take minutes. Raises EngineError."""
        try:
            self._failure = None
            self._llm = llm = await asyncio.to_thread(self._launch)
            # The first call starts the output handler on this event loop, which also
            # detects the death of the engine core.
            await llm.get_supported_tasks()
            for name in self._adapters.list_names():
                try:
                    await llm.add_lora(self._adapters.get(name))
                except Exception as error:
                    if llm.errored:
                        raise
                    # The model serves without an adapter that vLLM cannot load.
                    log.error(
                        "The adapter %s is not served, because vLLM cannot load it: %s", name, error
                    )
                    self._adapters.drop(name)
        except Exception as error:
            # Exceptions of vLLM's workers arrive here, often as a bare Exception with
            # text.
            await self.stop()
            raise EngineError(f"vLLM failed to start: {error}") from error

    def _launch(self) -> AsyncLLM:
        arguments = backend.arguments.AsyncEngineArgs(**self._arguments)
        return backend.async_llm.AsyncLLM.from_engine_args(
            arguments, stat_loggers=[self.counters.build_logger_class()]
        )

    async def stop(self) -> None:
        # Cleared first, so that new requests are rejected while vLLM shuts down.
        llm = self._llm
        self._llm = None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def fail(self, reason: str) -> None:
        """Report the engine as failed, so that it is restarted.

        reason: why it cannot continue.
        """
        self._failure = reason

    def get_health(self, *, waiting: int, running: int) -> Health:
        if self._llm is None:
            return Health(ready=False, reason="the engine is not running", waiting=waiting)
        failure = "vLLM's engine core has died" if self._llm.errored else self._failure
        if failure is not None:
            return Health(ready=False, reason=failure, waiting=waiting, failed=True)
        return Health(waiting=waiting, running=running)

    @property
    def is_running(self) -> bool:
        return self._llm is not None and not self._llm.errored and self._failure is None

    def get_engine(self) -> AsyncLLM:
        """Return the running engine. Raises EngineError if none is running."""
        if not self.is_running:
            raise EngineError("The engine is not running.")
        return self._llm
