"""The driver of a response, which decides when its events pass through its stages.

    engine -> run -> stage -> ... -> stage -> sink

All work on events is synchronous and written once: a run turns an engine's output into
a batch of events, a stage takes a batch and returns one, and the sink renders it.

The driver calls them in one of two ways. While the response's task waits for the engine
and the client keeps up, they are called in the engine's delivery, so that a token costs
no future and no resumed coroutine. Otherwise the task is resumed, and waits for the
client before it takes the next output: for slow readers, other ASGI servers and several
prompts, and for the start and the end of every response.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from ..core.errors import EngineError
from ..core.event_grammar import ProtocolError
from ..core.events import Event, Finished
from ..core.token_engine import Ended, Failed, Sampled, Scheduled, TokenOutput
from .engine_calls import EngineCall, close_stream
from .engine_progress import Progress
from .engine_timeout import limit_call_time
from .event_run import EventRun
from .output_queue import DeliveryRounds, OutputQueue
from .request_queue import QueuedRequest
from .token_run import TokenRun
from .wait_interruption import WaitInterruption

log = logging.getLogger(__name__)

T = TypeVar("T")
OutputT = TypeVar("OutputT")

Batches = AsyncGenerator[list[Event]]
Feed = Callable[[list[Event]], list[Event]]

_OUTPUTS_WITHOUT_ERROR: frozenset[type[TokenOutput]] = frozenset({Scheduled, Sampled, Ended})
"""The types of the last output in a delivery that needs no task: none of them can raise
an error.
"""


class Stage:
    """A step that every batch of a response passes through. Subclasses override what
    they need.
    """

    __slots__ = ()

    def begin(self) -> None:
        """Called before the first batch is requested; never for a call that is rejected
        earlier.
        """

    def feed(self, batch: list[Event]) -> list[Event]:
        """Take a batch, and return what the next stage gets; nothing for an empty list."""
        return batch

    async def finish(self) -> None:
        """Complete the response, after `Finished` was fed and before the client gets it.

        Raises the error with which the response fails instead.
        """

    async def fail(self, error: Exception) -> Exception:
        """Handle the failure of the response; return the error for the client."""
        return error

    def close(self, error: BaseException | None, /) -> None:
        """Release everything; called once, also if the response has never begun.

        error: what ended the response: None if it is complete, GeneratorExit or
            CancelledError if it was cancelled.
        """


class ResponseSink(Protocol):
    """The end of the stages, which sends a response to its client."""

    @property
    def is_ready(self) -> bool:
        """Whether `write` may be called now."""
        ...

    def render(self, batch: list[Event]) -> bytes: ...

    def write(self, batch: list[Event]) -> None:
        """Render a batch that is not empty, and send it without waiting."""
        ...

    async def send(self, chunk: bytes) -> None:
        """Send a chunk, which may be empty, and wait until the client takes more."""
        ...


class BatchStream:
    """The batches of a response after its stages.

    Iterate it, or pass it to a sink; either may be done once. Closing it cancels the
    response. Its stages are closed when it ends, is closed, or is garbage-collected: an
    async generator function would not do that before its first step.

    timeout: seconds from the request for the first batch until the response fails with
        EngineTimeout; None for no limit.
    """

    __slots__ = ("_batches", "_deadline", "_has_begun", "_source", "_stages", "timeout")

    def __init__(self, source: TokenSource | EventSource | Batches, *stages: Stage) -> None:
        is_engine = isinstance(source, TokenSource | EventSource)
        self._source = source if is_engine else None
        self._batches = source.iterate() if is_engine else source
        self._stages = stages
        self._has_begun = False
        self.timeout: float | None = None
        self._deadline = 0.0

    def add_stage(self, stage: Stage) -> None:
        """Add a stage after all others, before the first batch is requested."""
        assert not self._has_begun
        self._stages += (stage,)

    async def deliver(self, sink: ResponseSink, *, can_write: bool) -> None:
        """Pass all batches to the sink.

        can_write: whether the sink can ever be ready.
        """
        if self._source is not None and can_write:
            # Nearly every response has one stage: it is called without the loop.
            feed = self._stages[0].feed if len(self._stages) == 1 else self._feed
            self._source.attach(sink, feed)
        while True:
            try:
                # Without a variable, so that no chunk is held while the next is awaited.
                await sink.send(await self._advance(sink.render))
            except StopAsyncIteration:
                return

    def __aiter__(self) -> BatchStream:
        return self

    def __anext__(self) -> Coroutine[Any, Any, list[Event]]:
        return self._advance(_keep)

    async def aclose(self) -> None:
        await self._close(GeneratorExit())

    def __del__(self) -> None:
        self._release(GeneratorExit())

    async def _advance(self, render: Callable[[list[Event]], T]) -> T:
        """Request the next batch, and return it rendered."""
        try:
            if not self._has_begun:
                self._begin()
            batch: list[Event] = []
            while not batch:
                request = self._batches.__anext__()
                if self.timeout is not None:
                    request = limit_call_time(request, self.timeout, self._deadline)
                batch = self._feed(await request)
            if type(batch[-1]) is Finished:
                for stage in self._stages:
                    await stage.finish()
            return render(batch)
        except BaseException as error:
            failure = await self._end(error)
            try:
                if failure is error:
                    raise
                raise failure from error
            finally:
                # The exception's traceback holds this frame: a cycle that would keep
                # the response until the next garbage collection.
                del failure

    def _begin(self) -> None:
        self._has_begun = True
        if self.timeout is not None:
            self._deadline = asyncio.get_running_loop().time() + self.timeout
        for stage in self._stages:
            stage.begin()

    def _feed(self, batch: list[Event]) -> list[Event]:
        for stage in self._stages:
            batch = stage.feed(batch)
            if not batch:
                break
        return batch

    async def _end(self, error: BaseException) -> BaseException:
        """End the response; return the exception to raise."""
        failure = error
        try:
            if isinstance(failure, Exception) and not isinstance(failure, StopAsyncIteration):
                for stage in self._stages:
                    failure = await stage.fail(failure)
        finally:
            await self._close(None if isinstance(failure, StopAsyncIteration) else failure)
        return failure

    async def _close(self, error: BaseException | None) -> None:
        try:
            # The stages keep the model loaded until the engine has ended the request.
            await self._batches.aclose()
        finally:
            self._release(error)

    def _release(self, error: BaseException | None) -> None:
        stages = self._stages
        self._stages = ()
        for stage in stages:
            try:
                stage.close(error)
            except Exception:
                # The others hold a model or count the call.
                log.exception("a stage of a response failed to close")


def _keep(batch: list[Event]) -> list[Event]:
    return batch


class _Source(ABC, Generic[OutputT]):
    """Waits for an engine's output, and feeds it to its run."""

    __slots__ = ("_failure", "_feed", "_feed_run", "_progress", "_run", "_sink")

    def __init__(
        self,
        run: TokenRun | EventRun,
        feed_run: Callable[[list[OutputT]], list[Event]],
        progress: Progress,
    ) -> None:
        self._run = run
        self._feed_run = feed_run
        self._progress = progress
        self._sink: ResponseSink | None = None
        self._feed: Feed = _keep
        self._failure: Exception | None = None

    async def iterate(self) -> Batches:
        """Yield the batches of the response. Closing the generator ends the engine's
        work.
        """
        run = self._run
        progress = self._progress
        place = run.queue_ticket.enqueue()
        # After `enqueue`, which may raise: then there is nothing to end.
        progress.begin(self._fail)
        try:
            await place.wait_for_turn()
            with EngineCall():
                self._submit(place)
            while not run.has_ended:
                await self._wait()
                if self._failure is not None:
                    raise self._failure
                progress.events += 1
                batch = self._feed_run(self._take())
                if batch:
                    yield batch
                # Release this batch before waiting for the next one.
                del batch
                if run.failure is not None:
                    raise run.failure
            yield [run.build_finished()]
        finally:
            # What was attached holds this source.
            self._sink = None
            self._feed = _keep
            progress.end(self._fail)
            try:
                await self._close()
            finally:
                # The engine works on the request until it is closed.
                place.leave(run.n_tokens)
                # Called after `leave`, which would end the fast rejections that
                # `mark_full` begins.
                if run.queue_was_full:
                    run.queue_ticket.queue.mark_full()

    def attach(self, sink: ResponseSink, feed: Feed) -> None:
        """Pass batches through `feed` to the sink whenever it is ready."""
        self._sink = sink
        self._feed = feed

    def _pass_on(self, sink: ResponseSink, outputs: list[OutputT]) -> None:
        """Pass the output of a delivery on to the client. Does not raise: an error
        concerns this response only, not the engine's step or connection.
        """
        run = self._run
        self._progress.events += 1
        try:
            batch = self._feed_run(outputs)
            if batch and (batch := self._feed(batch)):
                sink.write(batch)
        except Exception as error:
            self._failure = error
        if run.has_ended or run.failure is not None or self._failure is not None:
            self._wake()

    @abstractmethod
    def _submit(self, place: QueuedRequest) -> None:
        """Submit the request to the engine. Raises the engine's error."""

    @abstractmethod
    def _wait(self) -> Awaitable[None]:
        """Wait for output, or for `_wake`. Raises the engine's error."""

    @abstractmethod
    def _take(self) -> list[OutputT]:
        """Take the output that has arrived; may be empty."""

    @abstractmethod
    def _wake(self) -> None:
        """End the wait for output, if there is one."""

    @abstractmethod
    def _fail(self, error: EngineError) -> None:
        """End the response with an error, after the output that has arrived."""

    @abstractmethod
    async def _close(self) -> None:
        """End the engine's work."""


class TokenSource(_Source[TokenOutput]):
    """The source of a token engine's outputs, which arrive in a queue."""

    __slots__ = ("_queue", "_rounds", "_token_run")

    def __init__(self, run: TokenRun, progress: Progress, rounds: DeliveryRounds) -> None:
        super().__init__(run, run.feed, progress)
        self._token_run = run
        self._rounds = rounds
        self._queue: OutputQueue[TokenOutput] = OutputQueue()

    def attach(self, sink: ResponseSink, feed: Feed) -> None:
        super().attach(sink, feed)
        self._queue.notify(self._rounds, self._deliver)

    def _deliver(self) -> None:
        sink = self._sink
        if (
            sink is not None
            and sink.is_ready
            and (outputs := self._queue.take_awaited(_OUTPUTS_WITHOUT_ERROR))
        ):
            self._pass_on(sink, outputs)
        else:
            self._queue.wake()

    def _submit(self, place: QueuedRequest) -> None:
        self._token_run.submit(self._queue.put, place)

    def _wait(self) -> Awaitable[None]:
        return self._queue.wait_for_items()

    def _take(self) -> list[TokenOutput]:
        return self._queue.take_all()

    def _wake(self) -> None:
        self._queue.wake()

    def _fail(self, error: EngineError) -> None:
        # Through the queue, so that output that arrived before the failure is sent
        # before the error.
        self._queue.put(Failed(self._token_run.id, error.message))

    async def _close(self) -> None:
        self._queue.stop_notifying()
        self._token_run.abort()


class EventSource(_Source[Event | None]):
    """The source of an event engine's events, which its stream yields or delivers."""

    __slots__ = ("_event_run", "_events", "_stream", "_wait_interruption")

    def __init__(self, run: EventRun, progress: Progress) -> None:
        super().__init__(run, run.feed, progress)
        self._event_run = run
        self._stream: AsyncGenerator[Event] | None = None
        self._events: list[Event | None] = []
        self._wait_interruption = WaitInterruption()

    def _deliver(self, events: list[Event]) -> bool:
        """Implements `EventDelivery`."""
        sink = self._sink
        if sink is None or not sink.is_ready or self._failure is not None or self._run.has_ended:
            return False
        self._pass_on(sink, [*events])
        return True

    def _submit(self, place: QueuedRequest) -> None:
        deliver = None if self._sink is None else self._deliver
        self._stream = self._event_run.submit(deliver, place)

    async def _wait(self) -> None:
        assert self._stream is not None
        if self._failure is not None:
            # The engine failed while the task was elsewhere: nothing would wake it.
            return
        try:
            with self._wait_interruption, EngineCall():
                self._events = [await anext(self._stream)]
        except Exception as error:
            # A delivery that ends the response takes precedence.
            if self._failure is None and not self._run.has_ended:
                if isinstance(error, StopAsyncIteration):
                    raise ProtocolError("the engine's stream ended without Finished") from error
                raise

    def _take(self) -> list[Event | None]:
        events = self._events
        self._events = []
        return events

    def _wake(self) -> None:
        self._wait_interruption.interrupt()

    def _fail(self, error: EngineError) -> None:
        if self._failure is None and not self._run.has_ended:
            self._failure = error
            self._wake()

    async def _close(self) -> None:
        if self._stream is not None:
            await close_stream(self._stream)
