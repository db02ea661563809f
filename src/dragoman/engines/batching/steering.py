"""What an administrator orders of a batching engine: to rest, to sleep, to compute with other weights.

All of it happens between two steps, on the thread that computes. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ...core.control import FIRST_VERSION, PauseMode, Sent, Stored, Weights
from ...core.errors import EngineError, Overloaded, RequestError, Unsupported
from ..arrays.weights import Tensors
from .model import Model
from .stepper import Stepper


class Closed(Struct, frozen=True):
    """Why nothing new is taken at present."""

    message: str
    code: str

    def error(self) -> Overloaded:
        return Overloaded(self.message, code=self.code)


PAUSED = Closed("Generation is paused; retry after it resumes.", "engine_paused")
BARE = Closed("The weights were discarded (sleep level 2); send new weights first.", "no_weights")


class Steered(Protocol):
    """What of the engine is needed here."""

    closed: Closed | None

    def end_all(self) -> int: ...

    async def drained(self) -> None: ...

    def hold(self, *, held: bool) -> None: ...

    def between_steps(self, work: Callable[[Stepper], None]) -> Awaitable[None]: ...


class Steering:
    """As `core.control.Control` and `core.control.Trainable`."""

    def __init__(self, engine: Steered, model: Model) -> None:
        self._engine, self._model = engine, model
        self._pause: object | None = None
        """Whose it is: a pause that waits learns from it that it has been ended meanwhile."""
        self._level = 0
        self._bare = False
        """The weights were discarded."""
        self._version = FIRST_VERSION
        self.renewed = False
        """The weights are no longer those of the beginning."""
        self._updates = 0
        self._updating = asyncio.Lock()

    @property
    def is_paused(self) -> bool:
        return self._pause is not None

    @property
    def sleep_level(self) -> int:
        return self._level

    @property
    def weight_version(self) -> str:
        return self._version

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """With abort and wait what comes meanwhile is refused (Overloaded), as in vLLM; with keep it waits."""
        if await self._rest(mode):
            await self._engine.between_steps(_restart if clear_cache else _nothing)

    async def resume(self) -> None:
        self._pause = None
        self._go_on()

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        discard = self._model.discarding() if level == 2 else _leave
        if discard is None:
            raise Unsupported("This engine cannot release its weights: use sleep level 1.", param="level")

        def fall_asleep(stepper: Stepper) -> None:
            stepper.close()
            discard()

        if not await self._rest(mode):
            return
        await self._engine.between_steps(_restart if level == 0 else fall_asleep)
        self._level, self._bare = level, self._bare or level == 2
        self._engine.closed = self._refusal()

    async def wake_up(self) -> None:
        self._level = 0
        await self.resume()

    async def abort_all(self) -> int:
        count = self._engine.end_all()
        await self._engine.between_steps(_nothing)
        return count

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        async with self._updating:
            put = await asyncio.to_thread(self._read, weights)
            self._updates += 1
            name = f"{self._version.partition('+')[0]}+{self._updates}" if version is None else version

            def swap(stepper: Stepper) -> None:
                put()
                stepper.renew(name)

            await self._engine.between_steps(swap)
            self._version, self._bare, self.renewed = name, False, True
            self._go_on()
            return name

    async def name_weights(self, version: str) -> None:
        def name(stepper: Stepper) -> None:
            stepper.version = version

        async with self._updating:
            await self._engine.between_steps(name)
            self._version = version

    async def _rest(self, mode: PauseMode) -> bool:
        """Steps rest when this returns; False if somebody has ended the pause before."""
        mine = self._pause = object()
        if mode != "keep":
            self._engine.closed = PAUSED
        if mode == "abort":
            self._engine.end_all()
        elif mode == "wait":
            await self._engine.drained()
            if self._pause is not mine:
                return False
        self._engine.hold(held=True)
        return True

    def _go_on(self) -> None:
        """As far as nothing else stands against it."""
        if self._pause is None:
            self._engine.closed = self._refusal()
            self._engine.hold(held=self._level > 0 or self._bare)

    def _refusal(self) -> Closed | None:
        """While it sleeps requests wait to be woken with it; but weights may never come."""
        return BARE if self._bare and not self._level else None

    def _read(self, weights: Weights) -> Callable[[], None]:
        """Raises RequestError: whatever is wrong with them, they came with the request."""
        try:
            match weights:
                case Stored(path):
                    return self._model.renew(Tensors(Path(path)))
                case Sent(files):
                    return self._model.renew(Tensors(files))
        except (EngineError, OSError) as error:
            message = f"The weights were rejected: {error}."
            raise RequestError(message, param="weights", code="invalid_weights") from error


def _restart(stepper: Stepper) -> None:
    stepper.scheduler.forget()
    stepper.scheduler.restart()


def _leave() -> None:
    """The weights are there as they were."""


def _nothing(_: Stepper) -> None:
    """For the order's sake: when it is done, all that was ordered before is done too."""
