"""Runs one prompt on an engine of events: its stream passes through the same parsers and stops as any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from ..core.events import ChoiceFinished, Event, Finished, FinishReason, PromptTokens, Started, Usage
from ..core.grammar import Grammar, ProtocolError
from .engine_calls import EngineCall, Progress, close_stream, contain
from .prepare import EventJob
from .strand import Strand


class EventRun:
    """The state of one prompt's answer. `batches` may be iterated once; closing it closes the engine's stream.

    A foreign engine's stream is checked: an illegal one is that engine's failure (ProtocolError), never a
    garbled answer.
    """

    def __init__(self, job: EventJob, progress: Progress) -> None:
        self._job, self._progress = job, progress
        self._grammar = Grammar()
        self._strands: list[Strand] = []
        self._started = Started(0)
        self._cut = self._ended = False

    async def batches(self) -> AsyncGenerator[list[Event]]:
        task, progress = asyncio.current_task(), self._progress
        with EngineCall():
            events = self._job.engine.generate(self._job.request)
        progress.begin()
        try:
            while not self._ended:
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    raise ProtocolError("the engine's stream ended without Finished") from None
                except Exception:
                    raise
                except BaseException as error:
                    contained = contain(error, task)
                    if contained is error:
                        raise
                    raise contained from error
                progress.events += 1
                out = self._feed(event)
                if out:
                    yield out
        finally:
            progress.end()
            await close_stream(events)

    def _feed(self, event: Event) -> list[Event]:
        self._grammar.feed(event)
        out = self._read(event)
        if isinstance(event, Finished):
            self._ended = True
        elif self._cut and all(strand.finished for strand in self._strands):
            # The last choice met a stop string here, so the engine's own end would come too late.
            self._ended = True
            return [*out, Finished(self._usage())]
        return out

    def _read(self, event: Event) -> list[Event]:
        match event:
            case Started():
                self._started = event
                self._strands = [self._job.strand(choice) for choice in range(event.choices)]
                return [event]
            case PromptTokens():
                return [event]
            case Finished(usage):
                return [Finished(self._complete(usage))]
            case _:
                return self._choice(event.choice, event)

    def _choice(self, choice: int, event: Event) -> list[Event]:
        strand = self._strands[choice]
        if strand.finished:
            return []
        out = strand.feed(event)
        if strand.matched:
            self._cut = True
            out += strand.feed(ChoiceFinished(choice, FinishReason.STOP))
        return out

    def _complete(self, usage: Usage) -> Usage:
        """The engine's own counts; reasoning is ours where our parser told it apart."""
        if self._cut:
            return self._usage()
        tells_tokens = any(strand.tokens for strand in self._strands) or not usage.completion
        if self._job.parses or (usage.reasoning is None and tells_tokens):
            return msgspec.structs.replace(usage, reasoning=sum(strand.reasoning for strand in self._strands))
        return usage

    def _usage(self) -> Usage:
        completion = sum(strand.tokens for strand in self._strands)
        reasoning = sum(strand.reasoning for strand in self._strands)
        return Usage(self._started.prompt_tokens, completion, self._started.cached_tokens, reasoning)
