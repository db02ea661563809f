"""Request metrics that the pipeline counts for engines without their own."""

from __future__ import annotations

from dragoman.core.events import (
    ChoiceFinished,
    FinishReason,
    Finished,
    Started,
    TextDelta,
    Token,
    Usage,
)
from dragoman.core.metrics import EngineStats
from dragoman.pipeline.metrics import RequestMetrics
from tests.pipeline.failing_engine import Clock


def test_the_wait_for_the_first_batch_is_no_gap_between_its_tokens() -> None:
    stats = EngineStats()
    clock = Clock()
    metrics = RequestMetrics(stats, clock)
    clock.now += 10
    metrics.observe_batch(
        [Started(3), TextDelta(0, "abc", (Token(1, "a"), Token(2, "b"), Token(3, "c")))]
    )
    assert (stats.ttft.sum, stats.inter_token.sum, stats.inter_token.count) == (10, 0, 2)
    clock.now += 1
    metrics.observe_batch([TextDelta(0, "d", (Token(4, "d"),))])
    assert (stats.inter_token.sum, stats.inter_token.count) == (1, 3)


def test_counts_that_an_upstream_reports_only_at_the_end_are_counted_then() -> None:
    stats = EngineStats()
    metrics = RequestMetrics(stats, Clock())
    with metrics:
        metrics.observe_batch(
            [Started(0), TextDelta(0, "abc"), ChoiceFinished(0, FinishReason.STOP)]
        )
        metrics.observe_batch([Finished(Usage(7, 3, 4))])
    assert (stats.prompt_tokens, stats.prompt_tokens_cached, stats.generation_tokens) == (7, 4, 3)
    for histogram, tokens in (
        (stats.request_prompt_tokens, 7),
        (stats.request_generation_tokens, 3),
    ):
        assert (histogram.sum, histogram.count) == (tokens, 1)


def test_what_was_counted_at_the_start_is_not_counted_again() -> None:
    stats = EngineStats()
    with RequestMetrics(stats, Clock()) as metrics:
        metrics.observe_batch(
            [Started(7, 4), TextDelta(0, "a", (Token(1, "a"),)), Finished(Usage(7, 1, 4))]
        )
    assert (stats.prompt_tokens, stats.prompt_tokens_cached, stats.generation_tokens) == (7, 4, 1)
    assert stats.request_prompt_tokens.count == 1
