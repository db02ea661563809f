"""A worker thread that computes the inputs of concurrent calls in batches."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ..core.engine import Health
from ..core.errors import EngineError, Overloaded, ProcessUnusable
from ..isolation.daemon_thread import run_in_daemon_thread
from .failure_message import describe_error

log = logging.getLogger(__name__)

PROBE_TIMEOUT = 60.0
"""Seconds within which a failed model must compute its probe before it is started again."""


T = TypeVar("T")


R = TypeVar("R")


class _Call(Generic[T, R]):
    """The inputs of one call and their results."""

    def __init__(self, inputs: Sequence[T]) -> None:
        self.inputs = inputs
        self.results: list[R] = []
        self.next_index = 0
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[list[R]] = self.loop.create_future()
        self.is_finished = False


class Batcher(Generic[T, R]):
    """A worker thread that computes batches of inputs.

    compute: maps inputs to as many results, in order; called on the thread.
    size: returns an input's number of tokens.
    max_batch_tokens: maximum tokens of a batch; a larger input is computed alone.
    max_waiting: maximum number of queued calls; another one raises Overloaded.
    probe: an input that can always be computed, unless the model has failed for good;
        None if that is not checked.

    A batch that raises is computed again input by input: only the calls whose inputs
    raise fail.
    """

    def __init__(
        self,
        compute: Callable[[list[T]], list[R]],
        size: Callable[[T], int],
        *,
        max_batch_tokens: int = 4096,
        max_waiting: int = 1024,
        name: str = "batcher",
        probe: T | None = None,
    ) -> None:
        self._compute = compute
        self._size = size
        self._max_batch_tokens = max_batch_tokens
        self._max_waiting = max_waiting
        self._name = name
        self._calls: deque[_Call[T, R]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._probe = probe
        self._failure: str | None = None
        """Why no input can be computed any more; None while the model works."""

    async def start(self) -> None:
        """Start the thread.

        Raises:
            ProcessUnusable: the model has failed, and cannot compute again.
        """
        self._stopping = False
        if self._failure is not None and not await self._check_in_time():
            raise ProcessUnusable(f"The engine does not recover in this process: {self._failure}")
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop after the current batch; pending calls fail with EngineError."""
        thread = self._thread
        self._thread = None
        if thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.to_thread(thread.join)
        # The thread has ended, so no lock is needed.
        for call in list(self._calls):
            _complete_call(call, EngineError("The engine is shutting down."))
        self._calls.clear()

    def health(self) -> Health:
        if self._thread is None:
            return Health(ready=False, reason="the engine is not running")
        if self._failure is not None:
            return Health(ready=False, reason=self._failure, failed=True)
        if not self._thread.is_alive():
            return Health(ready=False, reason="the engine's thread has died", failed=True)
        return Health(running=len(self._calls))

    async def run(self, inputs: Sequence[T]) -> list[R]:
        """Compute the results, in the order of the inputs. Raises Overloaded,
        EngineError. Cancelling drops remaining inputs.
        """
        if self._thread is None:
            raise EngineError("The engine is not running.")
        if self._failure is not None:
            raise Overloaded("The model's engine failed and is being restarted.")
        if len(self._calls) >= self._max_waiting:
            raise Overloaded(f"{len(self._calls)} calls are already queued; retry later.")
        if not inputs:
            return []
        call: _Call[T, R] = _Call(inputs)
        with self._changed:
            self._calls.append(call)
            self._changed.notify()
        try:
            return await call.done
        finally:
            call.is_finished = True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                batch = self._next_batch()
            if batch:
                self._compute_batch(batch)
            if self._failure is not None:
                with self._changed:
                    self._stopping = True
                    calls = list(self._calls)
                    self._calls.clear()
                for call in calls:
                    _complete_call(call, EngineError("The engine failed."))
                return

    def _compute_batch(self, batch: list[tuple[_Call[T, R], T]]) -> None:
        """Compute a batch and complete its calls. Never raises, or all later calls would
        wait forever.
        """
        try:
            results = self._compute([input for _, input in batch])
        except BaseException:
            log.exception("a batch failed")
            if self._check_model() and len(batch) > 1:
                for item in batch:
                    if not item[0].is_finished:
                        self._compute_batch([item])
                return
            for call in dict.fromkeys(call for call, _ in batch):
                _complete_call(call, EngineError("The engine failed while computing a batch."))
            return
        # A call's inputs are computed in order, so its results arrive in order.
        for (call, _), result in zip(batch, results, strict=True):
            call.results.append(result)
            if len(call.results) == len(call.inputs):
                _complete_call(call, None)

    async def _check_in_time(self) -> bool:
        """Return whether the model computes the probe within `PROBE_TIMEOUT`. A device
        that hangs keeps its thread.
        """
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                return await run_in_daemon_thread(self._check_model)
        except TimeoutError:
            return False

    def _check_model(self) -> bool:
        """Return whether the model computes the probe; set `_failure` accordingly."""
        try:
            if self._probe is not None:
                self._compute([self._probe])
        except BaseException as error:
            log.exception("the model cannot compute a probe either")
            self._failure = f"The engine failed: {describe_error(error)}"
            return False
        self._failure = None
        return True

    def _next_batch(self) -> list[tuple[_Call[T, R], T]]:
        """Collect the next batch: one input of each call in turn, until it is full."""
        batch: list[tuple[_Call[T, R], T]] = []
        size = 0
        while self._calls:
            call = self._calls.popleft()
            # The call was cancelled, or an earlier input of it failed.
            if call.is_finished:
                continue
            input = call.inputs[call.next_index]
            size += self._size(input)
            # An input larger than the limit is computed alone.
            if batch and size > self._max_batch_tokens:
                self._calls.appendleft(call)
                break
            batch.append((call, input))
            call.next_index += 1
            if call.next_index < len(call.inputs):
                self._calls.append(call)
        return batch


def _complete_call(call: _Call[T, R], error: EngineError | None) -> None:
    call.is_finished = True
    try:
        call.loop.call_soon_threadsafe(_set_result, call, error)
    except RuntimeError:
        """The loop is closed: no caller is left."""


def _set_result(call: _Call[T, R], error: EngineError | None) -> None:
    # The caller may have been cancelled after the thread had completed the call.
    if call.done.done():
        return
    if error is None:
        call.done.set_result(call.results)
    else:
        call.done.set_exception(error)
