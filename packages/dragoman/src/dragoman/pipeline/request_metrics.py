"""Metrics of requests per model, for engines that have no counters of their own.

They are updated once per batch of events, not once per token.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence

from ..core.engine_stats import EngineStats
from ..core.errors import EngineTimeout
from ..core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    get_answer_tokens,
)
from .driver import Stage
from .model_lifecycle import ModelSlot, ModelState
from .model_registry import Models
from .run_counts import RunCounts
from .served_model import ServedModel

MonotonicClock = Callable[[], float]
"""A monotonic clock, in seconds."""


class ModelMetrics:
    """The counters of all served models."""

    def __init__(self, models: Models, clock: MonotonicClock) -> None:
        self._models = models
        self._clock = clock
        self._stats_by_model: dict[str, EngineStats] = {}

    def start_request(self, model: ServedModel) -> RequestMetrics | None:
        """Return the metrics of a prompt that starts now; None if the engine counts it
        itself.
        """
        return (
            None
            if model.interfaces.stats_source is not None
            else RequestMetrics(self._find_stats(model), self._clock)
        )

    def _find_stats(self, model: ServedModel) -> EngineStats:
        """Return the counters of a model, which persist while it is unloaded."""
        return self._stats_by_model.setdefault(model.name, EngineStats())

    @property
    def slots(self) -> Sequence[ModelSlot]:
        """The models that are loaded, have failed or start with the server."""
        return [
            slot
            for slot in self._models.slots
            if slot.state is not ModelState.UNLOADED or slot.is_starting
        ]

    def __iter__(self) -> Iterator[tuple[ServedModel, Sequence[EngineStats]]]:
        """Yield every model with the current counters of its engine's cores."""
        for model in self._models:
            if model.interfaces.stats_source is not None:
                cores = model.interfaces.stats_source.stats()
                n_held = model.queues.generation.n_held
                if n_held:
                    # Requests that wait in front of the engine are listed with its
                    # first core.
                    first = copy.copy(cores[0])
                    first.waiting += n_held
                    cores = [first, *cores[1:]]
                yield model, cores
                continue
            stats = self._find_stats(model)
            health = model.backend.engine.health()
            stats.running = health.running
            stats.waiting = health.waiting + model.queues.generation.n_held
            stats.kv_cache_usage = health.kv_cache_usage
            yield model, [stats]


class RequestMetrics(Stage):
    """The metrics of one prompt's response.

    counts: the counts of the prompt's runs. They are used when the response ends, for
        what the events have not told; None to count events only.
    """

    __slots__ = (
        "_arrival_time",
        "_clock",
        "_first_token_time",
        "_has_begun",
        "_last_token_time",
        "_open_choices",
        "_prompt_tokens",
        "_start_time",
        "_stats",
        "_tokens",
        "counts",
    )

    def __init__(self, stats: EngineStats, clock: MonotonicClock) -> None:
        self._stats = stats
        self.counts: RunCounts | None = None
        self._clock = clock
        self._arrival_time = self._start_time = self._last_token_time = clock()
        self._first_token_time: float | None = None
        self._has_begun = False
        self._prompt_tokens = self._tokens = 0
        self._open_choices = 1
        """Choices that have not ended."""

    def begin(self) -> None:
        self._has_begun = True

    def feed(self, batch: list[Event]) -> list[Event]:
        count = 0
        stats = self._stats
        for event in batch:
            if type(event) is TextDelta:  # The common case.
                count += len(event.tokens)
                continue
            count += len(get_answer_tokens(event))
            match event:
                case Started(choices=choices, elapsed=elapsed):
                    # An estimate is counted when the answer ends: the engine may still
                    # report the count.
                    if not event.is_estimate:
                        self._count_prompt(event.prompt_tokens, event.cached_tokens)
                    stats.request_choices.observe(choices)
                    self._start_time = self._clock() - elapsed
                    stats.queue.observe(self._start_time - self._arrival_time)
                    self._open_choices = choices
                case ChoiceFinished(_, reason):
                    self._open_choices -= 1
                    if not self._open_choices:
                        # Counted once per request, like the histograms. The choice that
                        # ends last gives the reason.
                        stats.record_finish(reason)
                case Finished(usage):
                    # Many upstreams report counts only at the end, and no tokens.
                    self._count_prompt(usage.prompt, usage.cached)
                case _:
                    pass
        if not count:
            return batch
        now = self._clock()
        self._tokens += count
        stats.generation_tokens += count
        if self._first_token_time is None:
            # Further tokens of the first batch arrive with it, so the wait before it is
            # no gap between tokens.
            self._first_token_time = self._last_token_time = now
            stats.ttft.observe(now - self._arrival_time)
            count -= 1
        if count:
            stats.inter_token.observe((now - self._last_token_time) / count, count)
        self._last_token_time = now
        return batch

    def _count_prompt(self, tokens: int | None, cached: int | None) -> None:
        """Count the prompt, unless it has been counted or its tokens are not known yet."""
        if tokens and not self._prompt_tokens:
            self._prompt_tokens = tokens
            self._stats.prompt_tokens += tokens
            self._stats.prompt_tokens_cached += cached or 0
            self._stats.request_prompt_tokens.observe(tokens)

    def close(self, error: BaseException | None, /) -> None:
        """Record the outcome, unless the request was rejected before it was queued."""
        if not self._has_begun:
            return
        stats = self._stats
        now = self._clock()
        counts = self.counts
        if counts is not None:
            self._count_prompt(counts.prompt_tokens, counts.cached_tokens)
            if not counts.events_carry_tokens and counts.output_tokens > self._tokens:
                stats.generation_tokens += counts.output_tokens - self._tokens
                self._tokens = counts.output_tokens
        # Only if an exception ended the request; finished choices have already been
        # recorded.
        if error is not None and self._open_choices:
            is_aborted = isinstance(error, GeneratorExit | asyncio.CancelledError | EngineTimeout)
            stats.record_finish(FinishReason.ABORT if is_aborted else None)
        stats.latency.observe(now - self._arrival_time)
        stats.request_generation_tokens.observe(self._tokens)
        if self._first_token_time is not None:
            stats.prefill.observe(self._first_token_time - self._start_time)
            stats.decode.observe(self._last_token_time - self._first_token_time)
            stats.inference.observe(self._last_token_time - self._start_time)
            # The first token belongs to the prefill, so n tokens have n - 1 intervals
            # (as vLLM counts).
            if self._tokens > 1:
                stats.per_output_token.observe(
                    (self._last_token_time - self._first_token_time) / (self._tokens - 1)
                )
