"""Runs one prompt on an engine of events, with the same parsers and stop strings as for engines of tokens.

As in `token_run`, the steps have two drivers: the consumer of `stream_batches`, and an engine that delivers deltas
while that consumer waits and its receiver is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from ..core.engine import DirectEngine
from ..core.errors import EngineError
from ..core.event_grammar import EventGrammar, ProtocolError
from ..core.events import ChoiceFinished, Event, Finished, FinishReason, PromptTokens, Started, Usage
from .choice import ChoicePipeline
from .engine_calls import EngineCall, Progress, close_stream, contain
from .prepare import EventJob
from .request_queue import QueuedRequest
from .token_run import BatchReceiver


class EventRun:
    """The state of one prompt's response. `batches` may be iterated once; closing it closes the engine's stream.

    A third-party engine's stream is validated: an illegal one fails with ProtocolError instead of yielding a corrupt
    response.
    """

    def __init__(self, job: EventJob, progress: Progress) -> None:
        self._job, self._progress = job, progress
        self._grammar = EventGrammar()
        self._choices: list[ChoicePipeline] = []
        self._started = Started(0)
        self._completion_tokens = 0
        self._failure: Exception | None = None
        self._receiver: BatchReceiver | None = None
        self._observers: tuple[Callable[[list[Event]], None], ...] = ()
        self._waiting_task: asyncio.Task[object] | None = None
        self._was_stopped = self._ended = False
        self._place: QueuedRequest | None = None

    async def stream_batches(self) -> AsyncGenerator[list[Event]]:
        task, progress = asyncio.current_task(), self._progress
        self._place = place = self._job.queue_ticket.enqueue()
        progress.begin(self._fail)
        events: AsyncGenerator[Event] | None = None
        try:
            await place.wait_for_turn()
            with EngineCall():
                engine, request = self._job.engine, self._job.request
                events = (
                    engine.generate_directly(request, self)
                    if self._receiver is not None and isinstance(engine, DirectEngine)
                    else engine.generate(request)
                )
            while not self._ended:
                if self._failure is not None:
                    raise self._failure
                # Set only while the engine is awaited: a cancellation at any other time would hit the consumer's own
                # work.
                self._waiting_task = task
                event: Event | None = None
                try:
                    event = await anext(events)
                except BaseException as error:
                    failure = self._find_failure(error, task)
                    if failure is error:
                        raise
                    if failure is not None:
                        raise failure from error
                finally:
                    self._waiting_task = None
                if event is None and self._ended:
                    # A delta that was received directly has met the last stop string.
                    yield [Finished(self._build_usage())]
                    break
                if self._failure is not None and task is not None:
                    # The engine has ignored the cancellation.
                    task.uncancel()
                    raise self._failure
                progress.events += 1
                canonical = self._feed(event)
                if canonical:
                    yield canonical
        finally:
            progress.end(self._fail)
            try:
                if events is not None:
                    await close_stream(events)
            finally:
                # The engine works on the request until its stream is closed.
                place.leave(self._completion_tokens or sum(choice.n_tokens for choice in self._choices))

    def attach(self, receiver: BatchReceiver) -> None:
        """As `TokenRun.attach`."""
        self._receiver = receiver

    def add_observer(self, observe: Callable[[list[Event]], None]) -> None:
        """As `TokenRun.add_observer`."""
        self._observers += (observe,)

    @property
    def is_ready(self) -> bool:
        """As `EventReceiver.is_ready`."""
        receiver = self._receiver
        return receiver is not None and receiver.is_ready and self._failure is None and not self._ended

    def receive(self, events: list[Event]) -> None:
        """As `EventReceiver.receive`: the hot path of engines that deliver directly."""
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
        # It belongs to this response, not to the connection that it came from.
        except Exception as error:
            self._failure = self._failure or error
        if (self._ended or self._failure is not None) and self._waiting_task is not None:
            self._waiting_task.cancel()

    def _find_failure(self, error: BaseException, task: asyncio.Task[object] | None) -> BaseException | None:
        """What to raise instead of an exception of the engine's stream; None where we have ended the response."""
        # The cancellation is ours, but where another is pending as well, the consumer is being cancelled and that
        # prevails.
        if (self._ended or self._failure is not None) and (task is None or not task.uncancel()):
            return self._failure
        if isinstance(error, StopAsyncIteration):
            return ProtocolError("the engine's stream ended without Finished")
        return contain(error, task)

    def _fail(self, error: EngineError) -> None:
        if self._failure is None:
            self._failure = error
            if self._waiting_task is not None:
                self._waiting_task.cancel()

    def _feed(self, event: Event | None) -> list[Event]:
        out = self._advance(event)
        if isinstance(event, Finished):
            self._ended = True
        elif self._ended:
            return [*out, Finished(self._build_usage())]
        return out

    def _advance(self, event: Event | None) -> list[Event]:
        """Handle an event. It ends the answer where the last choice has matched a stop string: there is no need to wait
        for the engine's own end.
        """
        if event is None:
            raise ProtocolError("the engine yielded None, which is no event")
        self._grammar.feed(event)
        out = self._handle_event(event)
        if self._was_stopped and all(choice.has_finished for choice in self._choices):
            self._ended = True
        return out

    def _handle_event(self, event: Event) -> list[Event]:
        match event:
            case Started():
                self._started = event
                if self._place is not None:
                    self._place.start()
                self._choices = [self._job.build_choice(choice) for choice in range(event.choices)]
                return [event]
            case PromptTokens():
                return [event]
            case Finished(usage):
                self._completion_tokens = usage.completion
                return [Finished(self._complete_usage(usage))]
            case _:
                pipeline = self._choices[event.choice]
                # The engine does not know that a stop string has ended the choice.
                if pipeline.has_finished:
                    return []
                events = pipeline.feed(event)
                if pipeline.has_matched_stop:
                    self._was_stopped = True
                    events += pipeline.feed(ChoiceFinished(event.choice, FinishReason.STOP))
                return events

    def _complete_usage(self, usage: Usage) -> Usage:
        """The engine's own counts; reasoning tokens are counted here where our parser separated the reasoning."""
        if self._was_stopped:
            return self._build_usage()
        counts_tokens = any(choice.n_tokens for choice in self._choices) or not usage.completion
        if self._job.parses_reasoning or (usage.reasoning is None and counts_tokens):
            return msgspec.structs.replace(usage, reasoning=sum(choice.n_reasoning_tokens for choice in self._choices))
        return usage

    def _build_usage(self) -> Usage:
        completion = sum(choice.n_tokens for choice in self._choices)
        reasoning = sum(choice.n_reasoning_tokens for choice in self._choices)
        started = self._started
        return Usage(started.prompt_tokens, completion, started.cached_tokens, reasoning, started.written_tokens)
