"""What an administrator orders of an executor, as far as it can be ordered."""

from __future__ import annotations

import inspect

from ...core.control import PauseMode, Weights
from ...core.errors import RequestError, Unsupported
from .engine import RolloutEngine, ask
from .executor import Pausable, Updatable

PAUSED = "Generation is paused; retry after it resumes."


class RolloutControl:
    """As `core.control.Control`, of an executor that can be paused."""

    def __init__(self, engine: RolloutEngine, executor: Pausable) -> None:
        self._engine, self._executor = engine, executor
        self._pause: object | None = None

    @property
    def is_paused(self) -> bool:
        return self._pause is not None

    @property
    def sleep_level(self) -> int:
        return 0

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """What becomes of its cache is the executor's own business."""
        del clear_cache
        mine = self._pause = object()
        self._engine.closed = None if mode == "keep" else PAUSED
        if mode == "abort":
            self._engine.end_all()
        elif mode == "wait":
            await self._engine.until(lambda: self._engine.empty or self._pause is not mine)
        if self._pause is mine:
            self._engine.hold(self, held=True)
            await ask(self._executor.pause, here=inspect.iscoroutinefunction(self._executor.pause))

    async def resume(self) -> None:
        if self._pause is None:
            return
        self._pause, self._engine.closed = None, None
        await ask(self._executor.resume, here=inspect.iscoroutinefunction(self._executor.resume))
        self._engine.hold(self, held=False)

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        del level, mode
        raise Unsupported("Executors do not support sleep; the trainer controls them.", param="level")

    async def wake_up(self) -> None:
        await self.resume()

    async def abort_all(self) -> int:
        return self._engine.end_all()


class RolloutTraining:
    """As `core.control.Trainable`, of an executor whose weights can be replaced."""

    def __init__(self, engine: RolloutEngine, executor: Updatable, control: RolloutControl | None) -> None:
        self._engine, self._executor, self._control = engine, executor, control

    @property
    def weight_version(self) -> str:
        return self._executor.weight_version

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        """When no call is running, so that each is of one version; of a paused one, at once."""
        executor = self._executor
        self._engine.hold(self, held=True)
        try:
            if self._control is None or not self._control.is_paused:
                await self._engine.until(lambda: self._engine.idle)
            here = inspect.iscoroutinefunction(executor.update_weights)
            await ask(lambda: executor.update_weights(weights, version), here=here)
        except ValueError as error:
            message = f"The weights were rejected: {error}"
            raise RequestError(message, param="weights", code="invalid_weights") from error
        finally:
            self._engine.hold(self, held=False)
        return executor.weight_version

    async def name_weights(self, version: str) -> None:
        del version
        raise Unsupported("Executors set their own weight version.", param="new_version")
