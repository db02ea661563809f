"""The driver of a response, which decides when its events pass through its stages.

    engine -> run -> stage -> ... -> stage -> sink

All work on events is synchronous and written once: a run turns an engine's output into
a batch of events, a stage takes a batch and returns one, and the sink renders it.

The driver calls them in one of two ways. While the response's task waits for the engine
and the client keeps up, they are called in the engine's delivery, so that a token costs
no future and no resumed coroutine. Otherwise the task is resumed, and waits for the
client before it takes the next output: for slow readers, other ASGI servers and several
prompts, and for the end of every response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from ..core.errors import DragomanError, EngineError
from ..core.event_grammar import ProtocolError
from ..core.events import Event, Finished
from ..core.token_engine import Ended, Failed, Sampled, Scheduled, TokenOutput
from .engine_calls import EngineCall, close_stream, translate_engine_exception
from .engine_progress import Progress
from .engine_timeout import limit_call_time
from .event_run import EventRun
from .output_queue import DeliveryRounds
from .request_queue import QueuedRequest, QueueState, QueueTicket
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
MAX_UNREAD_TOKENS = 64
"""Tokens of a response that is sent as a whole, after which they are read. To read many
together costs less than to read each, and these take less than 0.1 ms.
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


class BatchSource:
    """Where a response's batches come from."""

    __slots__ = ()

    def attach(self, sink: ResponseSink, feed: Feed | None, *, is_whole: bool) -> None:
        """Pass batches to the sink whenever it is ready, if the source can.

        feed: the stages before the sink; None if none of them looks at batches.
        is_whole: as in `BatchStream.deliver`.
        """

    async def read(self) -> list[Event]:
        """Wait for the next batch; return an empty one after the last."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the work on the response; does nothing if it has ended."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Close the source from a finalizer, which cannot wait."""


class _GeneratorSource(BatchSource):
    """The batches that an async generator yields."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def read(self) -> list[Event]:
        async for batch in self._batches:
            if batch:
                return batch
        return []

    async def close(self) -> None:
        await self._batches.aclose()


class BatchStream:
    """The batches of a response after its stages.

    Iterate it, or pass it to a sink; either may be done once. Closing it cancels the
    response. Its stages are closed when it ends, is closed, or is garbage-collected: an
    async generator function would not do that before its first step.

    timeout: seconds from the request for the first batch until the response fails with
        EngineTimeout; None for no limit.
    """

    __slots__ = (
        "_deadline",
        "_has_begun",
        "_has_finished",
        "_is_closed",
        "_source",
        "_stages",
        "timeout",
    )

    def __init__(self, source: BatchSource | Batches, *stages: Stage) -> None:
        self._source = source if isinstance(source, BatchSource) else _GeneratorSource(source)
        self._stages = stages
        self._has_begun = False
        self._has_finished = False
        self._is_closed = False
        self.timeout: float | None = None
        self._deadline = 0.0

    def add_stage(self, stage: Stage) -> None:
        """Add a stage after all others, before the first batch is requested."""
        assert not self._has_begun
        self._stages += (stage,)

    async def deliver(self, sink: ResponseSink, *, can_write: bool, is_whole: bool = False) -> None:
        """Pass all batches to the sink.

        can_write: whether the sink can ever be ready.
        is_whole: the client gets the response as a whole, so that no token is urgent.
        """
        if can_write:
            feed = self._find_feed() if self._stages else None
            self._source.attach(sink, feed, is_whole=is_whole)
        while not self._has_finished:
            chunk = await self._advance(sink.render)
            if chunk is None:
                return
            await sink.send(chunk)
            # No chunk is held while the next is awaited.
            del chunk
        await self._close(None)

    def __aiter__(self) -> BatchStream:
        return self

    async def __anext__(self) -> list[Event]:
        batch = await self._advance(_keep)
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        if not self._is_closed:
            await self._close(GeneratorExit())

    def __del__(self) -> None:
        if not self._is_closed:
            self._source.abandon()
            self._release(GeneratorExit())

    async def _advance(self, render: Callable[[list[Event]], T]) -> T | None:
        """Request the next batch, and return it rendered; None after the last."""
        if self._is_closed:
            return None
        try:
            if not self._has_begun:
                self._begin()
            batch: list[Event] = []
            while not batch:
                request = self._source.read()
                if self.timeout is not None:
                    request = limit_call_time(request, self.timeout, self._deadline)
                batch = await request
                if not batch:
                    await self._close(None)
                    return None
                if self._stages:
                    batch = self._feed(batch)
            if type(batch[-1]) is Finished:
                for stage in self._stages:
                    await stage.finish()
                self._has_finished = True
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

    def _find_feed(self) -> Feed | None:
        """Return a function that feeds the stages which look at batches; None if none
        does. Nearly every response has at most one, which is called without the loop.
        """
        feeds = [stage.feed for stage in self._stages if type(stage).feed is not Stage.feed]
        if len(feeds) > 1:
            return self._feed
        return feeds[0] if feeds else None

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
            if isinstance(failure, Exception):
                for stage in self._stages:
                    failure = await stage.fail(failure)
        finally:
            await self._close(failure)
        return failure

    async def _close(self, error: BaseException | None) -> None:
        self._is_closed = True
        try:
            # The stages keep the model loaded until the engine has ended the request.
            await self._source.close()
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


class _Run(Protocol[OutputT]):
    """A `TokenRun` or an `EventRun`."""

    failure: DragomanError | None
    has_ended: bool
    queue_was_full: bool
    queue_ticket: QueueTicket

    @property
    def n_tokens(self) -> int: ...

    def feed(self, outputs: list[OutputT], /) -> list[Event]: ...

    def build_finished(self) -> Finished: ...


class _EngineSource(BatchSource, Generic[OutputT]):
    """Waits for an engine's output, and feeds it to its run."""

    __slots__ = (
        "_failure",
        "_feed",
        "_has_begun",
        "_has_finished",
        "_loop",
        "_min_events",
        "_place",
        "_progress",
        "_run",
        "_sink",
    )

    def __init__(self, run: _Run[OutputT], progress: Progress) -> None:
        self._run = run
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._place: QueuedRequest | None = None
        self._sink: ResponseSink | None = None
        self._feed: Feed | None = None
        self._failure: Exception | None = None
        self._has_begun = False
        self._has_finished = False
        # Events of a batch, except for the last.
        self._min_events = 1

    def attach(self, sink: ResponseSink, feed: Feed | None, *, is_whole: bool) -> None:
        del is_whole
        self._sink = sink
        self._feed = feed

    async def read(self) -> list[Event]:
        run = self._run
        events: list[Event] = []
        try:
            if not self._has_begun:
                self._has_begun = True
                await self._begin()
            while True:
                if run.failure is not None:
                    raise run.failure
                if run.has_ended:
                    break
                await self._wait()
                if self._failure is not None:
                    raise self._failure
                self._progress.events += 1
                events += run.feed(self._take())
                if len(events) >= self._min_events:
                    return events
            if not self._has_finished:
                self._has_finished = True
                events.append(run.build_finished())
                return events
        except BaseException:
            # Before the stages handle the failure, which may take long.
            await self.close()
            raise
        await self.close()
        return []

    async def _begin(self) -> None:
        """Wait in the queue, and submit the request to the engine."""
        place = self._run.queue_ticket.enqueue()
        # After `enqueue`, which may raise: then there is nothing to end.
        self._place = place
        self._progress.begin(self)
        if place.state is QueueState.WAITING:
            await place.wait_for_turn()
        try:
            self._submit(place)
        except Exception:
            raise
        except BaseException as error:
            failure = translate_engine_exception(error, asyncio.current_task())
            if failure is error:
                raise
            raise failure from error

    async def close(self) -> None:
        # What was attached holds this source.
        self._sink = None
        self._feed = None
        place = self._place
        if place is None:
            return
        self._place = None
        run = self._run
        self._progress.end(self)
        try:
            await self._close()
        finally:
            # The engine works on the request until it is closed.
            place.leave(self._count_tokens())
            # Called after `leave`, which would end the fast rejections that
            # `mark_full` begins.
            if run.queue_was_full:
                run.queue_ticket.queue.mark_full()

    def abandon(self) -> None:
        if self._place is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.create_task, self.close())

    def _pass_on(self, sink: ResponseSink, outputs: list[OutputT]) -> None:
        """Pass the output of a delivery on to the client. Does not raise: an error
        concerns this response only, not the engine's step or connection.
        """
        run = self._run
        self._progress.events += 1
        try:
            batch = run.feed(outputs)
            feed = self._feed
            if batch and (feed is None or (batch := feed(batch))):
                sink.write(batch)
        except Exception as error:
            self._failure = error
        if run.has_ended or run.failure is not None or self._failure is not None:
            self._wake()

    def _submit(self, place: QueuedRequest) -> None:
        """Submit the request to the engine. Raises the engine's error."""
        raise NotImplementedError

    def _wait(self) -> Awaitable[None]:
        """Wait for output, or for `_wake`. Raises the engine's error."""
        raise NotImplementedError

    def _take(self) -> list[OutputT]:
        """Take the output that has arrived; may be empty."""
        raise NotImplementedError

    def _wake(self) -> None:
        """End the wait for output, if there is one."""
        raise NotImplementedError

    def fail(self, error: EngineError) -> None:
        """End the response with an error, after the output that has arrived."""
        raise NotImplementedError

    async def _close(self) -> None:
        """End the engine's work."""
        raise NotImplementedError

    def _count_tokens(self) -> int:
        """Return the number of tokens that the engine has sampled."""
        return self._run.n_tokens


class TokenSource(_EngineSource[TokenOutput]):
    """The source of a token engine's outputs, and their queue: a list and one wake-up
    cost less than an asyncio.Queue per token.

    Filled and emptied on one event loop. Bounded by the engine: a response has at most
    max_tokens outputs.
    """

    __slots__ = (
        "_is_announced",
        "_outputs",
        "_rounds",
        "_token_run",
        "_waiter",
    )

    def __init__(self, run: TokenRun, progress: Progress, rounds: DeliveryRounds) -> None:
        super().__init__(run, progress)
        self._token_run = run
        self._rounds = rounds
        self._outputs: list[TokenOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        # Whether the first of these outputs has woken the task or scheduled a delivery.
        self._is_announced = False

    def attach(self, sink: ResponseSink, feed: Feed | None, *, is_whole: bool) -> None:
        # Stages may measure times, and a stop string must end the engine's work.
        if is_whole and feed is None and self._token_run.can_wait:
            self._min_events = MAX_UNREAD_TOKENS
        else:
            self._sink = sink
            self._feed = feed

    def put(self, output: TokenOutput) -> None:
        """Take an output of the engine."""
        outputs = self._outputs
        outputs.append(output)
        if self._is_announced:
            return
        kind = type(output)
        if len(outputs) < self._min_events and (kind is Sampled or kind is Scheduled):
            self._progress.events += 1
            # The queue must know at once, so that it can pass on the next request.
            if kind is Scheduled and self._place is not None:
                self._place.start()
            return
        self._is_announced = True
        if self._sink is None:
            self._wake()
        else:
            self._rounds.schedule(self)

    def deliver(self) -> None:
        """Pass the outputs on to the client if the task waits for them, and has thus
        handled all earlier ones; otherwise wake it.
        """
        outputs = self._outputs
        if not outputs:
            return
        sink = self._sink
        waiter = self._waiter
        if (
            sink is None
            or not sink.is_ready
            or waiter is None
            or waiter.done()
            or type(outputs[-1]) not in _OUTPUTS_WITHOUT_ERROR
        ):
            self._wake()
            return
        self._outputs = []
        self._is_announced = False
        self._pass_on(sink, outputs)

    def _submit(self, place: QueuedRequest) -> None:
        self._token_run.submit(self.put, place)

    def _wait(self) -> Awaitable[None]:
        # A future is awaited once and not reusable. It is cheaper than an Event, which
        # has a future and a queue of waiters; a coroutine would cost more, once per
        # token.
        self._waiter = self._loop.create_future()
        if self._outputs:
            self._waiter.set_result(None)
        return self._waiter

    def _take(self) -> list[TokenOutput]:
        outputs = self._outputs
        self._outputs = []
        self._is_announced = False
        return outputs

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: EngineError) -> None:
        # Through the queue, so that output that arrived before the failure is sent
        # before the error.
        self.put(Failed(self._token_run.id, error.message))

    async def _close(self) -> None:
        if not self._token_run.has_ended:
            self._token_run.abort()

    def _count_tokens(self) -> int:
        n_unread = sum(type(output) is Sampled for output in self._outputs) if self._outputs else 0
        return self._token_run.n_tokens + n_unread


class EventSource(_EngineSource[Event | None]):
    """The source of an event engine's events, which its stream yields or delivers."""

    __slots__ = ("_event_run", "_events", "_stream", "_wait_interruption")

    def __init__(self, run: EventRun, progress: Progress) -> None:
        super().__init__(run, progress)
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

    def fail(self, error: EngineError) -> None:
        if self._failure is None and not self._run.has_ended:
            self._failure = error
            self._wake()

    async def _close(self) -> None:
        if self._stream is not None:
            await close_stream(self._stream)
