"""An engine that can die, and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dragoman.core.capabilities import Capabilities
from dragoman.core.engine import Health
from dragoman.core.errors import EngineError
from dragoman.core.events import Event
from dragoman.core.request import GenerateRequest
from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.prompts.hf_tokenizer import HfTokenizer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def sleep_forever(_: float) -> None:
    await asyncio.Event().wait()


class FailingEngine:
    """A scripted engine that can die: it emits nothing more until it is stopped, as a
    lost process would.
    """

    def __init__(self, tokenizer: HfTokenizer) -> None:
        self._engine = ScriptedEngine(
            Script((ScriptEntry((Say("One two three four."),), repeat=True),)), tokenizer=tokenizer
        )
        self.dead = self.refuses = self.ignores_stop = False
        self.start_error: Exception | None = None
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.die_at: int | None = None
        """So many events into its next answer."""
        self.starts = 0
        self._stopped = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def start(self) -> None:
        if self.refuses:
            raise EngineError("no device")
        if self.start_error is not None:
            raise self.start_error
        await self.may_start.wait()
        self.starts += 1
        self.dead = False
        self._stopped.clear()
        await self._engine.start()

    async def stop(self) -> None:
        if not self.ignores_stop:
            self._stopped.set()
            await self._engine.stop()

    def health(self) -> Health:
        return Health(False, "died", failed=True) if self.dead else self._engine.health()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        async with aclosing(self._engine.generate(request)) as events:
            count = 0
            async for event in events:
                count += 1
                self.dead |= count == self.die_at
                if self.dead:
                    await self._stopped.wait()
                    raise EngineError("The engine crashed.")
                yield event
