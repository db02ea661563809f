"""The run of one prompt on an event engine, with the same parsers as for token engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from ..core.engine import DirectEngine
from ..core.errors import EngineError
from ..core.event_grammar import EventGrammar, ProtocolError
from ..core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    Usage,
)
from .choice_pipeline import ChoicePipeline
from .engine_calls import EngineCall, close_stream, translate_engine_exception
from .engine_progress import Progress
from .request_preparation import EventJob
from .request_queue import QueuedRequest
from .token_run import BatchReceiver
from .usage_completion import UsageCompletion


class EventRun:
    """One prompt's response from an event engine, with the same parsers and stop
    strings as for token engines.

    `stream_batches` may be called once; closing its generator closes the engine's
    stream.

    The stream is validated, as the engine may be third-party code: an invalid stream
    fails with ProtocolError instead of yielding a corrupt response.
    """

    def __init__(self, job: EventJob, progress: Progress) -> None:
        self._job = job
        self._progress = progress
        self._grammar = EventGrammar()
        self._choices: list[ChoicePipeline] = []
        self._started = Started(None)
        self._usage = UsageCompletion(job.queue_ticket.tokens)
        self._failure: Exception | None = None
        self._receiver: BatchReceiver | None = None
        self._observers: tuple[Callable[[list[Event]], None], ...] = ()
        self._waiting_task: asyncio.Task[object] | None = None
        self._has_matched_stop = self._was_interrupted = self._ended = False
        self._queued_request: QueuedRequest | None = None

    async def stream_batches(self) -> AsyncGenerator[list[Event]]:
        task = asyncio.current_task()
        progress = self._progress
        assert task is not None
        self._queued_request = place = self._job.queue_ticket.enqueue()
        progress.begin(self._fail)
        events: AsyncGenerator[Event] | None = None
        try:
            await place.wait_for_turn()
            with EngineCall():
                engine = self._job.engine
                request = self._job.request
                events = (
                    engine.generate_directly(request, self)
                    if self._receiver is not None and isinstance(engine, DirectEngine)
                    else engine.generate(request)
                )
            while not self._ended:
                event = await self._next_event(events, task)
                if self._ended:
                    yield [self._usage.finish(self._count_tokens())]
                    break
                progress.events += 1
                batch = self._feed(event)
                if batch:
                    yield batch
        finally:
            progress.end(self._fail)
            try:
                if events is not None:
                    await close_stream(events)
            finally:
                # The engine works on the request until its stream is closed.
                place.leave(self._usage.size.count)

    def attach(self, receiver: BatchReceiver) -> None:
        """See `TokenRun.attach`."""
        self._receiver = receiver

    def add_observer(self, observe: Callable[[list[Event]], None]) -> None:
        """See `TokenRun.add_observer`."""
        self._observers += (observe,)

    @property
    def is_ready(self) -> bool:
        """See `EventReceiver.is_ready`."""
        receiver = self._receiver
        return (
            receiver is not None and receiver.is_ready and self._failure is None and not self._ended
        )

    def receive(self, events: list[Event]) -> None:
        """See `EventReceiver.receive`. This is the hot path of engines that deliver
        directly.
        """
        receiver = self._receiver
        assert receiver is not None
        self._progress.events += 1
        try:
            batch: list[Event] = []
            for event in events:
                batch += self._advance(event)
                if self._ended:
                    # The consumer yields the end, and closes the engine's stream.
                    break
            if batch:
                for observe in self._observers:
                    observe(batch)
                receiver.receive(batch)
        # The error concerns this response only, and must not fail the connection that
        # the events came from.
        except Exception as error:
            self._failure = self._failure or error
        if self._ended or self._failure is not None:
            self._interrupt()

    async def _next_event(
        self, events: AsyncGenerator[Event], task: asyncio.Task[object]
    ) -> Event | None:
        """Wait for the engine's next event. Returns None if a direct delivery has ended
        the response meanwhile.

        Raises the engine's error, or that of a direct delivery.
        """
        if self._failure is not None:
            raise self._failure
        event: Event | None = None
        self._waiting_task = task
        try:
            event = await anext(events)
        except BaseException as error:
            # If another cancellation is pending as well, the consumer is being
            # cancelled, which takes precedence.
            is_interruption = self._was_interrupted and not task.uncancel()
            has_ended = self._ended or self._failure is not None
            if not is_interruption and not (has_ended and isinstance(error, Exception)):
                failure = translate_engine_exception(error, task)
                if isinstance(error, StopAsyncIteration):
                    failure = ProtocolError("the engine's stream ended without Finished")
                if failure is error:
                    raise
                raise failure from error
        else:
            if self._was_interrupted:
                # The engine has ignored the cancellation.
                task.uncancel()
        finally:
            self._waiting_task = None
        if self._failure is not None:
            raise self._failure
        return None if self._ended else event

    def _interrupt(self) -> None:
        """Cancel the wait for the engine's next event. `_next_event` undoes this one
        cancellation.

        Nothing is cancelled at any other time: that would cancel the consumer's own
        work.
        """
        task = self._waiting_task
        if task is None or self._was_interrupted:
            return
        # The engine has called the receiver from its own generator. It may yield
        # without waiting, and then the cancellation would reach the consumer: before
        # Python 3.13, `uncancel` does not retract one that is not raised.
        if task is asyncio.current_task():
            asyncio.get_running_loop().call_soon(self._interrupt)
            return
        self._was_interrupted = True
        task.cancel()

    def _fail(self, error: EngineError) -> None:
        if self._failure is None and not self._ended:
            self._failure = error
            self._interrupt()

    def _feed(self, event: Event | None) -> list[Event]:
        """Handle an event that the stream yielded."""
        events = self._advance(event)
        if isinstance(event, Finished):
            self._ended = True
        elif self._ended:
            return [*events, self._usage.finish(self._count_tokens())]
        return events

    def _advance(self, event: Event | None) -> list[Event]:
        """Handle an event. The response ends when its last choice has matched a stop
        string.

        There is no need to wait until the engine ends it.
        """
        if event is None:
            raise ProtocolError("the engine yielded None instead of an event")
        self._grammar.feed(event)
        events: list[Event] = [event]
        match event:
            case Started():
                self._started = event = self._usage.start(event)
                events = [event]
                if self._queued_request is not None:
                    self._queued_request.start()
                self._choices = [self._job.build_choice(choice) for choice in range(event.choices)]
            case PromptTokens():
                pass
            case Finished(usage):
                counted = self._count_tokens()
                if self._has_matched_stop:
                    usage = counted
                # The engine's counts are used, but reasoning tokens are counted here if
                # our parser separates reasoning.
                elif self._job.parses_reasoning or usage.reasoning is None:
                    usage = msgspec.structs.replace(usage, reasoning=counted.reasoning)
                events = [self._usage.finish(usage)]
            case _:
                pipeline = self._choices[event.choice]
                # The engine does not know that a stop string has ended the choice.
                if pipeline.has_finished:
                    return []
                self._usage.add(event)
                events = pipeline.feed(event)
                if pipeline.has_matched_stop:
                    self._has_matched_stop = True
                    events += pipeline.feed(ChoiceFinished(event.choice, FinishReason.STOP))
        if self._has_matched_stop and all(choice.has_finished for choice in self._choices):
            self._ended = True
        return events

    def _count_tokens(self) -> Usage:
        """Count the tokens that the engine's events have carried, if they carry all."""
        completion = reasoning = None
        if self._usage.size.has_all_tokens:
            completion = sum(choice.n_tokens for choice in self._choices)
            reasoning = sum(choice.n_reasoning_tokens for choice in self._choices)
        started = self._started
        return Usage(None, completion, started.cached_tokens, reasoning, started.written_tokens)
