"""What an administrator orders of vLLM: to rest, to sleep, to end what runs. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Callable

from ...core.control import PauseMode
from ...core.errors import Unsupported
from .backend import AsyncLLM


class Steering:
    """As `core.control.Control`.

    running: the engine, or an EngineError. end_all: ends what waits and runs; how many. sleeps: it was started so that
    it can give memory back.
    """

    def __init__(self, running: Callable[[], AsyncLLM], end_all: Callable[[], list[str]], *, sleeps: bool) -> None:
        self._running, self._end_all, self._sleeps = running, end_all, sleeps
        self._paused = False
        self._level = 0

    def awake(self) -> None:
        """It has been started again."""
        self._paused, self._level = False, 0

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def sleep_level(self) -> int:
        return self._level

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """With abort and wait what comes meanwhile is refused (Overloaded); with keep it waits."""
        llm = self._running()
        self._paused = True
        await llm.pause_generation(mode=mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        await self._running().resume_generation()
        self._paused = False

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        if level and not self._sleeps:
            raise Unsupported(
                "vLLM was started without sleep mode; set `enable_sleep_mode` in --vllm-args.", param="level"
            )
        llm = self._running()
        self._paused = True
        await llm.sleep(level, mode)
        self._level = level

    async def wake_up(self) -> None:
        await self._running().wake_up(None if self._level else ["scheduling"])
        self._paused, self._level = False, 0

    async def abort_all(self) -> int:
        llm, ids = self._running(), self._end_all()
        await llm.abort(ids)
        return len(ids)
