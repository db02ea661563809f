"""The chunks of one answer as one legal stream of events. Pure: it knows no connection and no clock.

A stream that ends before its choices do has failed, whatever it said last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ...core.errors import EngineError
from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    Usage,
)
from ...core.request import GenerateRequest
from .calls import CallSequence
from .errors import error_in_stream
from .tokens import tokens_of
from .wire import Choice, Chunk, Delta, WireUsage

_REASONS = {
    FinishReason.STOP: ("stop", "tool_calls", "function_call", "eos", "eos_token", "end_turn", "stop_sequence"),
    FinishReason.LENGTH: ("length", "max_tokens", "model_length"),
    FinishReason.CONTENT_FILTER: ("content_filter", "safety"),
    FinishReason.ABORT: ("abort",),
}
_REASON_OF = {word: reason for reason, words in _REASONS.items() for word in words}


class _ChoiceReading:
    """held: tokens that no event has carried yet."""

    def __init__(self, choice: int, new_id: Callable[[], str]) -> None:
        self.choice = choice
        self.calls = CallSequence(choice, new_id)
        self.held: tuple[Token, ...] = ()
        self.over = False
        self.count = 0

    def feed(self, chunk: Choice, kv: str | None = None) -> list[Event]:
        """kv: where its keys and values can be fetched."""
        if self.over:
            return []
        tokens = tokens_of(chunk)
        self.count += len(tokens)
        events = self._said(chunk.delta or chunk.message or Delta(content=chunk.text), self.held + tokens)
        if chunk.finish_reason is not None:
            events += self.calls.close()
            events.append(self._finish(chunk, kv))
        return events

    def _said(self, delta: Delta, tokens: tuple[Token, ...]) -> list[Event]:
        """The tokens ride on the last thing that was said."""
        events: list[Event] = []
        if thought := delta.reasoning or delta.reasoning_content:
            events.append(ReasoningDelta(self.choice, thought))
        if delta.content:
            events.append(TextDelta(self.choice, delta.content))
        if delta.refusal:
            events.append(RefusalDelta(self.choice, delta.refusal))
        if events:
            events = [*self.calls.close(), *events]
        calls = delta.tool_calls or []
        self.held = () if events or calls else tokens
        if events and not calls:
            events[-1] = msgspec.structs.replace(events[-1], tokens=tokens)
        for index, call in enumerate(calls, 1):
            events += self.calls.feed(call, tokens if index == len(calls) else ())
        return events

    def _finish(self, chunk: Choice, kv: str | None) -> ChoiceFinished:
        self.over = True
        reason = _REASON_OF.get(chunk.finish_reason or "")
        if reason is None:
            raise EngineError(f"The upstream ended its answer with {chunk.finish_reason!r:.80}.")
        stop = chunk.matched_stop if chunk.stop_reason is None else chunk.stop_reason
        met = stop if isinstance(stop, str | int) and reason is FinishReason.STOP else None
        return ChoiceFinished(self.choice, reason, met, self.held, kv)


class Reading:
    """Chunks in, events out. `close` when the upstream has said that it is done, or has hung up."""

    def __init__(self, request: GenerateRequest, new_id: Callable[[], str]) -> None:
        self._request = request
        choices = max(request.choices, request.best_of or 0)
        self._choices = [_ChoiceReading(choice, new_id) for choice in range(choices)]
        self._usage = WireUsage()
        self.started = False

    def feed(self, chunk: Chunk) -> list[Event]:
        """Raises RequestError if the upstream refuses, EngineError if it fails or makes no sense."""
        if chunk.error is not None:
            error = error_in_stream(chunk.error)
            raise error if isinstance(error, EngineError) or not self.started else EngineError(error.message)
        self._usage = chunk.usage or self._usage
        events = [] if self.started else self._start(chunk)
        for choice in chunk.choices or ():
            if not 0 <= choice.index < len(self._choices):
                raise EngineError(f"The upstream returned choice {choice.index}, which was not requested.")
            events += self._choices[choice.index].feed(choice, chunk.kv)
        return events

    def close(self) -> list[Event]:
        """Raises EngineError if the answer is not complete."""
        if not self.started or not all(choice.over for choice in self._choices):
            raise EngineError("The upstream's answer was cut off.")
        usage, details = self._usage, self._usage.completion_tokens_details
        counted = sum(choice.count for choice in self._choices)
        return [
            Finished(
                Usage(
                    usage.prompt_tokens or 0,
                    counted if usage.completion_tokens is None else usage.completion_tokens,
                    self._cached(),
                    None if details is None else details.reasoning_tokens,
                )
            )
        ]

    def _start(self, chunk: Chunk) -> list[Event]:
        self.started = True
        started = Started(self._usage.prompt_tokens or 0, self._cached(), len(self._choices))
        if not self._request.return_prompt:
            return [started]
        told = [chunk.prompt_token_ids, *(each.prompt_token_ids for each in chunk.choices or ())]
        return [started, self._prompt(next((ids for ids in told if ids), ()), chunk.prompt_text)]

    def _prompt(self, ids: Sequence[int], text: str | None) -> PromptTokens:
        given = self._request.prompt
        said = given if isinstance(given, str) else text or ""
        return PromptTokens(0, said, tuple(Token(id, "") for id in ids))

    def _cached(self) -> int | None:
        details = self._usage.prompt_tokens_details
        return None if details is None else details.cached_tokens
