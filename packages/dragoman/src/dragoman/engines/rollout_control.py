"""Administrative control of an RL executor: pause, weight updates."""

from __future__ import annotations

import inspect

from ..core.engine_control import PauseMode
from ..core.errors import RequestError, Unsupported
from ..core.weight_updates import WeightHistory, Weights
from .rollout_calls import call_executor
from .rollout_engine import RolloutEngine
from .rollout_executor import Pausable, Updatable, find_weight_version

PAUSED = "Generation is paused; retry after it resumes."


class RolloutControl:
    """Implements `core.engine_control.EngineControl` for an executor that can be
    paused.
    """

    def __init__(self, engine: RolloutEngine, executor: Pausable) -> None:
        self._engine = engine
        self._executor = executor
        self._pause_token: object | None = None

    @property
    def is_paused(self) -> bool:
        return self._pause_token is not None

    @property
    def sleep_level(self) -> int:
        return 0

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Pause. The executor manages its own cache."""
        del clear_cache
        # Identifies this pause: a `resume` or another pause during the wait below
        # replaces it.
        token = self._pause_token = object()
        self._engine.rejection = None if mode == "keep" else PAUSED
        if mode == "abort":
            self._engine.abort_all()
        elif mode == "wait":
            await self._engine.wait_until(
                lambda: self._engine.is_empty or self._pause_token is not token
            )
        if self._pause_token is token:
            self._engine.set_paused(self, paused=True)
            await call_executor(
                self._executor.pause, on_loop=inspect.iscoroutinefunction(self._executor.pause)
            )

    async def resume(self) -> None:
        if self._pause_token is None:
            return
        self._pause_token = None
        self._engine.rejection = None
        # The executor resumes first: no call may start while it is still paused.
        await call_executor(
            self._executor.resume, on_loop=inspect.iscoroutinefunction(self._executor.resume)
        )
        self._engine.set_paused(self, paused=False)

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        del level, mode
        raise Unsupported(
            "Executors do not support sleep; the trainer controls them.", param="level"
        )

    async def wake_up(self) -> None:
        await self.resume()

    async def abort_all(self) -> int:
        return self._engine.abort_all()


class RolloutTraining:
    """Implements `core.weight_updates.Trainable` for an executor with replaceable
    weights.
    """

    def __init__(
        self, engine: RolloutEngine, executor: Updatable, control: RolloutControl | None
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._control = control

    @property
    def weight_version(self) -> str:
        return find_weight_version(self._executor) or ""

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        """Update the weights when no call is running, so that each call uses one
        version; at once if paused.
        """
        executor = self._executor
        # Without this pause new calls would start, and the wait for the running ones
        # might never end.
        self._engine.set_paused(self, paused=True)
        try:
            # The calls of a paused executor may be suspended: waiting for them could
            # deadlock.
            if self._control is None or not self._control.is_paused:
                await self._engine.wait_until(lambda: self._engine.is_idle)
            on_loop = inspect.iscoroutinefunction(executor.update_weights)
            await call_executor(lambda: executor.update_weights(weights, version), on_loop=on_loop)
        except ValueError as error:
            message = f"The weights were rejected: {error}"
            raise RequestError(message, param="weights", code="invalid_weights") from error
        finally:
            self._engine.set_paused(self, paused=False)
        return self.weight_version

    async def set_weight_version(self, version: str) -> None:
        del version
        raise Unsupported("Executors set their own weight version.", param="new_version")

    @property
    def history(self) -> WeightHistory | None:
        """None: the weights are the executor's."""
        return None

    async def succeed(self, history: WeightHistory) -> None:
        """Do nothing, see `history`."""
        del history
