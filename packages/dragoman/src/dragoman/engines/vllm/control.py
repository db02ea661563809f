"""Pause, sleep and abort of a running vLLM through its Python API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...core.engine_control import PauseMode
from ...core.errors import Unsupported
from .backend import AsyncLLM


class VllmControl:
    """Pauses and resumes vLLM, and puts it to sleep. Implements
    `core.engine_control.EngineControl`.

    get_engine: returns the running engine or raises EngineError.
    abort_running: aborts all requests and returns their ids.
    can_sleep: whether vLLM was started with sleep mode enabled.
    """

    def __init__(
        self,
        get_engine: Callable[[], AsyncLLM],
        abort_running: Callable[[], list[str]],
        *,
        can_sleep: bool,
    ) -> None:
        self._get_engine = get_engine
        self._abort_running = abort_running
        self._can_sleep = can_sleep
        self._paused = False
        self._sleep_level = 0
        self.update_lock = asyncio.Lock()
        """Held while the weights are replaced, which pauses the engine too."""

    def reset(self) -> None:
        """Reset the state after a restart of the engine."""
        self._paused = False
        self._sleep_level = 0

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def sleep_level(self) -> int:
        return self._sleep_level

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Pause. In the modes `abort` and `wait` new requests are rejected
        (Overloaded); in `keep` they are queued.
        """
        llm = await self._find_engine()
        self._paused = True
        await llm.pause_generation(mode=mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        await (await self._find_engine()).resume_generation()
        self._paused = False

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        if level and not self._can_sleep:
            raise Unsupported(
                "vLLM was started without sleep mode; set `enable_sleep_mode` in --vllm-args.",
                param="level",
            )
        llm = await self._find_engine()
        self._paused = True
        await llm.sleep(level, mode)
        self._sleep_level = level

    async def wake_up(self) -> None:
        # A sleep of level 0 only stops the scheduler, so there are no weights or blocks
        # to restore.
        await (await self._find_engine()).wake_up(None if self._sleep_level else ["scheduling"])
        self._paused = False
        self._sleep_level = 0

    async def _find_engine(self) -> AsyncLLM:
        """Return the running engine when no update of its weights is in progress.
        Raises EngineError.
        """
        # The lock is released before the engine is used: a pause may wait for running
        # requests, and `resume` must be able to end it.
        async with self.update_lock:
            return self._get_engine()

    async def abort_all(self) -> int:
        llm = self._get_engine()
        ids = self._abort_running()
        await llm.abort(ids)
        return len(ids)
