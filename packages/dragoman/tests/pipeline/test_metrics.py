"""Request metrics that the pipeline counts for engines without their own."""

from __future__ import annotations

from dataclasses import dataclass

from tests.pipeline.failing_engine import Clock

from dragoman.core.engine_stats import EngineStats
from dragoman.core.events import (
    ChoiceFinished,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Token,
    Usage,
)
from dragoman.pipeline.request_metrics import RequestMetrics
from dragoman.pipeline.run_counts import RunCounts


def test_inter_token_latency_excludes_wait_for_first_batch() -> None:
    stats = EngineStats()
    clock = Clock()
    metrics = RequestMetrics(stats, clock)
    clock.now += 10
    metrics.feed([Started(3), TextDelta(0, "abc", (Token(1, "a"), Token(2, "b"), Token(3, "c")))])
    assert (stats.ttft.sum, stats.inter_token.sum, stats.inter_token.count) == (10, 0, 2)
    clock.now += 1
    metrics.feed([TextDelta(0, "d", (Token(4, "d"),))])
    assert (stats.inter_token.sum, stats.inter_token.count) == (1, 3)


@dataclass(frozen=True)
class FinishedRun:
    prompt_tokens: int
    cached_tokens: int
    n_tokens: int


def test_upstream_counts_reported_at_end_are_recorded() -> None:
    stats = EngineStats()
    metrics = RequestMetrics(stats, Clock())
    metrics.counts = RunCounts([FinishedRun(7, 4, 3)], events_carry_tokens=False)
    metrics.begin()
    metrics.feed(
        [
            Started(9, is_estimate=True),
            TextDelta(0, "abc"),
            ChoiceFinished(0, FinishReason.STOP),
        ]
    )
    metrics.feed([Finished(Usage(7, 3, 4))])
    metrics.close(None)
    assert (stats.prompt_tokens, stats.prompt_tokens_cached, stats.generation_tokens) == (7, 4, 3)
    for histogram, tokens in (
        (stats.request_prompt_tokens, 7),
        (stats.request_generation_tokens, 3),
    ):
        assert (histogram.sum, histogram.count) == (tokens, 1)


def test_counts_from_start_are_not_recorded_twice() -> None:
    stats = EngineStats()
    metrics = RequestMetrics(stats, Clock())
    metrics.feed([Started(7, 4), TextDelta(0, "a", (Token(1, "a"),)), Finished(Usage(7, 1, 4))])
    assert (stats.prompt_tokens, stats.prompt_tokens_cached, stats.generation_tokens) == (7, 4, 1)
    assert stats.request_prompt_tokens.count == 1
