"""Administrative control of a batching engine: pause, sleep and weight updates.

Changes take effect between two steps, on the worker thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ...core.engine_control import PauseMode
from ...core.errors import EngineError, Overloaded, RequestError, Unsupported
from ...core.weight_updates import (
    INITIAL_WEIGHT_VERSION,
    WeightHistory,
    Weights,
    WeightsInMemory,
    WeightsOnDisk,
    build_lost_weights_error,
)
from ..safetensors_reader import Tensors
from .model_protocols import Model
from .stepper import Stepper

log = logging.getLogger(__name__)


class Rejection(Struct, frozen=True):
    """The reason why new requests are currently rejected."""

    message: str
    code: str | None

    def build_error(self) -> Overloaded:
        return Overloaded(self.message, code=self.code)


PAUSED = Rejection("Generation is paused; retry after it resumes.", "engine_paused")
NO_WEIGHTS = Rejection(
    "The weights were discarded (sleep level 2); send new weights first.", "no_weights"
)


class ControlledEngine(Protocol):
    """The interface of the engine that control needs."""

    rejection: Rejection | None

    def abort_all(self) -> int: ...

    async def wait_until_idle(self) -> None: ...

    def set_paused(self, *, paused: bool) -> None: ...

    def run_between_steps(self, work: Callable[[Stepper], None]) -> Awaitable[None]: ...


class BatchingControl:
    """Implements `core.engine_control.EngineControl` and
    `core.weight_updates.Trainable`.
    """

    def __init__(self, engine: ControlledEngine, model: Model) -> None:
        self._engine = engine
        self._model = model
        self._pause_token: object | None = None
        """Identifies the current pause: a pause that waits compares it to detect that
        it was ended or replaced.
        """
        self._sleep_level = 0
        self._lacks_weights = False
        """Whether the weights were discarded."""
        self._version = INITIAL_WEIGHT_VERSION
        self.has_new_weights = False
        """Whether the weights differ from those loaded at startup."""
        self._num_updates = 0
        self._lost_version: str | None = None
        """The version of the weights that the predecessor had, until they are replaced.
        """
        self._update_lock = asyncio.Lock()

    @property
    def is_paused(self) -> bool:
        return self._pause_token is not None

    @property
    def sleep_level(self) -> int:
        return self._sleep_level

    @property
    def weight_version(self) -> str:
        return self._version

    @property
    def history(self) -> WeightHistory:
        version = self._version if self.has_new_weights else self._lost_version
        return WeightHistory(self._version, self._num_updates, version)

    async def succeed(self, history: WeightHistory) -> None:
        # The count of updates continues, so that no version name is given to two sets
        # of weights.
        self._num_updates = history.updates
        self._lost_version = history.run_time_version
        if history.run_time_version is None:
            await self.set_weight_version(history.version)
            return
        log.error(
            "the weights of version %s are lost; requests are rejected until weights are sent",
            history.run_time_version,
        )
        self._engine.rejection = self._find_rejection()

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Pause steps. In modes abort and wait new requests are rejected (Overloaded),
        as in vLLM; in keep they wait.
        """
        if await self._pause_steps(mode):
            await self._engine.run_between_steps(_clear_and_restart if clear_cache else _do_nothing)

    async def resume(self) -> None:
        self._pause_token = None
        self._resume_steps()

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        # Checked before anything is paused, so that an engine that cannot discard its
        # weights keeps running.
        discard = self._model.prepare_discard() if level == 2 else _keep_weights
        if discard is None:
            raise Unsupported(
                "This engine cannot release its weights: use sleep level 1.", param="level"
            )

        def free_memory(stepper: Stepper) -> None:
            stepper.close()
            discard()

        # `resume` was called while this waited for the requests. The later command
        # wins: the engine stays awake.
        if not await self._pause_steps(mode):
            return
        await self._engine.run_between_steps(_clear_and_restart if level == 0 else free_memory)
        self._sleep_level = level
        self._lacks_weights = self._lacks_weights or level == 2
        self._engine.rejection = self._find_rejection()

    async def wake_up(self) -> None:
        self._sleep_level = 0
        await self.resume()

    async def abort_all(self) -> int:
        count = self._engine.abort_all()
        # The aborts are commands in the worker's queue; this task is queued behind
        # them, so it runs after them.
        await self._engine.run_between_steps(_do_nothing)
        return count

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        async with self._update_lock:
            # Reading and checking takes seconds to minutes and runs concurrently with
            # steps; only the swap pauses them.
            apply = await asyncio.to_thread(self._prepare_weights, weights)
            self._num_updates += 1
            new_version = (
                f"{self._version.partition('+')[0]}+{self._num_updates}"
                if version is None
                else version
            )

            def swap(stepper: Stepper) -> None:
                apply()
                stepper.replace_weights(new_version)

            await self._engine.run_between_steps(swap)
            self._version = new_version
            self._lacks_weights = False
            self.has_new_weights = True
            self._accept_weights()
            # Steps were still paused if the old weights had been discarded.
            self._resume_steps()
            return new_version

    async def set_weight_version(self, version: str) -> None:
        def set_version(stepper: Stepper) -> None:
            stepper.version = version

        async with self._update_lock:
            await self._engine.run_between_steps(set_version)
            self._version = version
            self._accept_weights()

    def _accept_weights(self) -> None:
        """Serve the current weights: they were sent or named after those of the
        predecessor were lost.
        """
        self._lost_version = None
        if self._engine.rejection is not PAUSED:
            self._engine.rejection = self._find_rejection()

    async def _pause_steps(self, mode: PauseMode) -> bool:
        """Pause steps before returning True. Returns False if this pause was ended or
        replaced meanwhile.
        """
        token = self._pause_token = object()
        if mode != "keep":
            self._engine.rejection = PAUSED
        if mode == "abort":
            self._engine.abort_all()
        elif mode == "wait":
            await self._engine.wait_until_idle()
            if self._pause_token is not token:
                return False
        self._engine.set_paused(paused=True)
        return True

    def _resume_steps(self) -> None:
        """Resume steps unless another condition still blocks them."""
        if self._pause_token is None:
            self._engine.rejection = self._find_rejection()
            self._engine.set_paused(paused=self._sleep_level > 0 or self._lacks_weights)

    def _find_rejection(self) -> Rejection | None:
        """Find the reason to reject new requests. During sleep they queue, except after
        the weights were discarded: new weights may never arrive.
        """
        if self._lost_version is not None:
            error = build_lost_weights_error(self._lost_version)
            return Rejection(error.message, error.code)
        return NO_WEIGHTS if self._lacks_weights and not self._sleep_level else None

    def _prepare_weights(self, weights: Weights) -> Callable[[], None]:
        """Read and check new weights. Every fault is a RequestError, since the weights
        come with the request.
        """
        try:
            match weights:
                case WeightsOnDisk(path):
                    return self._model.prepare_weights(Tensors(Path(path)))
                case WeightsInMemory(files):
                    return self._model.prepare_weights(Tensors(files))
        except (EngineError, OSError) as error:
            message = f"The weights were rejected: {error}."
            raise RequestError(message, param="weights", code="invalid_weights") from error


def _clear_and_restart(stepper: Stepper) -> None:
    stepper.scheduler.clear_cache()
    stepper.scheduler.restart_all()


def _keep_weights() -> None:
    """Discard nothing: only sleep level 2 frees the weights."""


def _do_nothing(_: Stepper) -> None:
    """Serve as a barrier: tasks run in order, so when this has run, all earlier tasks
    have run.
    """
