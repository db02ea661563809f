"""Counts what a model's requests become, for engines that do not count for themselves. Knows no HTTP.

Once a batch of events and not once a token: it sees when something was said, and how many tokens that had.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from types import TracebackType

from ..core.events import ChoiceFinished, Event, FinishReason, Started, TextDelta, sampled
from ..core.metrics import EngineStats
from .models import Models, ServedModel

Clock = Callable[[], float]
"""Seconds; never goes back."""


class Meters:
    """The counters of all served models."""

    def __init__(self, models: Models, clock: Clock) -> None:
        self._models, self._clock = models, clock
        self._own: dict[str, EngineStats] = {}

    def tally(self, model: ServedModel) -> Tally | None:
        """For one prompt that comes now; None where the engine counts it."""
        return None if model.monitored is not None else Tally(self._stats(model), self._clock)

    def _stats(self, model: ServedModel) -> EngineStats:
        """They outlive the model where that is let go and comes back."""
        return self._own.setdefault(model.name, EngineStats())

    def __iter__(self) -> Iterator[tuple[ServedModel, Sequence[EngineStats]]]:
        """Every model with the counters of its cores, as of now."""
        for model in self._models:
            if model.monitored is not None:
                yield model, model.monitored.stats()
                continue
            stats, health = self._stats(model), model.backend.engine.health()
            stats.running, stats.waiting = health.running, health.waiting
            yield model, [stats]


class Tally:
    """One prompt's answer, as a context around its batches: how it is left tells how it ended."""

    __slots__ = ("_arrived", "_clock", "_first", "_last", "_left", "_stats", "_tokens")

    def __init__(self, stats: EngineStats, clock: Clock) -> None:
        self._stats, self._clock = stats, clock
        self._arrived = self._last = clock()
        self._first: float | None = None
        self._tokens = 0
        self._left = 1
        """Choices that have not ended."""

    def batch(self, events: list[Event]) -> None:
        count = 0
        for event in events:
            if type(event) is TextDelta:  # nearly always
                count += len(event.tokens)
            else:
                count += len(sampled(event))
                self._note(event)
        if count:
            self._said(count, self._clock())

    def _said(self, count: int, now: float) -> None:
        stats = self._stats
        self._tokens += count
        stats.generation_tokens += count
        if self._first is None:
            self._first = now
            stats.ttft.observe(now - self._arrived)
            count -= 1
        if count:
            stats.inter_token.observe((now - self._last) / count, count)
        self._last = now

    def _note(self, event: Event) -> None:
        stats = self._stats
        match event:
            case Started(prompt_tokens, cached_tokens, choices):
                stats.prompt_tokens += prompt_tokens
                stats.prompt_tokens_cached += cached_tokens or 0
                stats.request_prompt_tokens.observe(prompt_tokens)
                stats.request_choices.observe(choices)
                stats.queue.observe(self._clock() - self._arrived)
                self._left = choices
            case ChoiceFinished(_, reason):
                self._left -= 1
                if not self._left:
                    # Once a request, as the histograms beside it count. The choice that ends last gives the reason.
                    stats.finished(reason)
            case _:
                pass

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        stats, now = self._stats, self._clock()
        if kind is not None and self._left:
            left = issubclass(kind, GeneratorExit | asyncio.CancelledError)
            stats.finished(FinishReason.ABORT if left else None)
        stats.latency.observe(now - self._arrived)
        stats.request_generation_tokens.observe(self._tokens)
        if self._first is not None:
            stats.prefill.observe(self._first - self._arrived)
            stats.decode.observe(self._last - self._first)
            stats.inference.observe(self._last - self._arrived)
            if self._tokens > 1:
                stats.per_output_token.observe((self._last - self._first) / (self._tokens - 1))


async def counted(batches: AsyncGenerator[list[Event]], tally: Tally) -> AsyncGenerator[list[Event]]:
    """The same batches. Closing it closes them."""
    count = tally.batch
    with tally:
        async with aclosing(batches):
            async for batch in batches:
                count(batch)
                yield batch
