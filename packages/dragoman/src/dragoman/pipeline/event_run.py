"""The run of one prompt on an event engine: events in, batches of events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from ..core.engine import EventDelivery
from ..core.errors import DragomanError
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
from .choice_pipeline import ChoicePipeline, join_choice_warnings
from .request_preparation import EventJob
from .request_queue import QueuedRequest
from .usage_completion import UsageCompletion


class EventRun:
    """One prompt's response from an event engine, with the same parsers and stop
    strings as for token engines. The driver waits for the events.

    The stream is validated, as the engine may be third-party code: an invalid stream
    fails with ProtocolError instead of yielding a corrupt response.

    has_ended: the engine has ended the response, or its last choice has matched a stop
        string.
    """

    def __init__(self, job: EventJob) -> None:
        self._job = job
        self._grammar = EventGrammar()
        self._choices: list[ChoicePipeline] = []
        self._started = Started(None)
        self._usage = UsageCompletion(job.queue_ticket.tokens)
        self._finished: Finished | None = None
        self._has_matched_stop = False
        self._place: QueuedRequest | None = None
        self.queue_ticket = job.queue_ticket
        self.queue_was_full = False
        self.failure: DragomanError | None = None
        self.has_ended = False

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, reported or estimated; None until the engine starts."""
        finished = self._finished
        reported = None if finished is None else finished.usage.prompt
        return self._started.prompt_tokens if reported is None else reported

    @property
    def cached_tokens(self) -> int | None:
        finished = self._finished
        reported = None if finished is None else finished.usage.cached
        return self._started.cached_tokens if reported is None else reported

    @property
    def n_tokens(self) -> int:
        """Number of generated tokens, as reported by the engine, counted or estimated."""
        return self._usage.size.count

    def submit(self, deliver: EventDelivery | None, place: QueuedRequest) -> AsyncGenerator[Event]:
        """Return the engine's stream.

        deliver: takes the events that the engine does not yield; None if all must be
            yielded.
        place: the request's place in the queue, which learns when the engine starts.
        """
        self._place = place
        job = self._job
        if deliver is not None and job.direct is not None:
            return job.direct.generate_directly(job.request, deliver)
        return job.engine.generate(job.request)

    def feed(self, events: list[Event | None]) -> list[Event]:
        """Handle events. The response ends when its last choice has matched a stop
        string.

        There is no need to wait until the engine ends it.
        """
        if len(events) == 1 and not self.has_ended:
            return self._handle_event(events[0])
        batch: list[Event] = []
        for event in events:
            if self.has_ended:
                break
            batch += self._handle_event(event)
        return batch

    def _handle_event(self, event: Event | None) -> list[Event]:
        if event is None:
            raise ProtocolError("the engine yielded None instead of an event")
        self._grammar.feed(event)
        if isinstance(event, (Started, PromptTokens, Finished)):
            return self._handle_whole(event)
        pipeline = self._choices[event.choice]
        # The engine does not know that a stop string has ended the choice.
        if pipeline.has_finished:
            return []
        self._usage.size.add(event)
        events = pipeline.feed(event)
        if pipeline.has_matched_stop:
            self._has_matched_stop = True
            events += pipeline.feed(ChoiceFinished(event.choice, FinishReason.STOP))
        if self._has_matched_stop and all(choice.has_finished for choice in self._choices):
            self.has_ended = True
        return events

    def _handle_whole(self, event: Started | PromptTokens | Finished) -> list[Event]:
        """Handle an event that belongs to no choice."""
        match event:
            case Started():
                started = self._started = self._usage.start(event)
                if self._place is not None:
                    self._place.start()
                self._choices = [self._job.build_choice(i) for i in range(started.choices)]
                return [started]
            case PromptTokens():
                return [event]
            case Finished(usage):
                finished = self._usage.finish(self._choose_counts(usage))
                warnings = (*event.warnings, *finished.warnings)
                self._finished = msgspec.structs.replace(finished, warnings=warnings)
                self.has_ended = True
                return []

    def build_finished(self) -> Finished:
        """Return the end of the response, with the engine's counts, or with those of
        this run if a stop string has ended the response.
        """
        finished = self._finished or self._usage.finish(self._count_tokens())
        warnings = (*finished.warnings, *join_choice_warnings(self._choices))
        return msgspec.structs.replace(finished, warnings=warnings)

    def _choose_counts(self, usage: Usage) -> Usage:
        """Choose between the counts that the engine reports and those of this run.

        The engine's are used, but reasoning tokens are counted here if our parser
        separates reasoning.
        """
        counted = self._count_tokens()
        if self._has_matched_stop:
            return counted
        if self._job.parses_reasoning or usage.reasoning is None:
            return msgspec.structs.replace(usage, reasoning=counted.reasoning)
        return usage

    def _count_tokens(self) -> Usage:
        """Count the tokens that the engine's events have carried, if they carry all."""
        completion = reasoning = None
        if self._usage.size.has_all_tokens:
            completion = sum(choice.n_tokens for choice in self._choices)
            reasoning = sum(choice.n_reasoning_tokens for choice in self._choices)
        started = self._started
        return Usage(None, completion, started.cached_tokens, reasoning, started.written_tokens)
