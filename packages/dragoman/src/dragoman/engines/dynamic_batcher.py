"""A worker thread that computes the inputs of concurrent calls in batches."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ..core.engine import Health
from ..core.errors import EngineError, Overloaded

log = logging.getLogger(__name__)


log = logging.getLogger(__name__)


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
    """

    def __init__(
        self,
        compute: Callable[[list[T]], list[R]],
        size: Callable[[T], int],
        *,
        max_batch_tokens: int = 4096,
        max_waiting: int = 1024,
        name: str = "batcher",
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

    def start(self) -> None:
        self._stopping = False
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
        if not self._thread.is_alive():
            return Health(ready=False, reason="the engine's thread has died", failed=True)
        return Health(running=len(self._calls))

    async def run(self, inputs: Sequence[T]) -> list[R]:
        """Compute the results, in the order of the inputs. Raises Overloaded,
        EngineError. Cancelling drops remaining inputs.
        """
        if self._thread is None:
            raise EngineError("The engine is not running.")
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
            try:
                results = self._compute([input for _, input in batch]) if batch else []
            # The thread has to survive whatever a model raises, or all later calls
            # would wait forever.
            except BaseException:
                log.exception("a batch failed")
                for call in dict.fromkeys(call for call, _ in batch):
                    _complete_call(call, EngineError("The engine failed while computing a batch."))
                continue
            # A call's inputs are computed in order, so its results arrive in order.
            for (call, _), result in zip(batch, results, strict=True):
                call.results.append(result)
                if len(call.results) == len(call.inputs):
                    _complete_call(call, None)

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
