"""Request metrics that the pipeline counts for engines without their own."""

from __future__ import annotations

from dragoman.core.events import Started, TextDelta, Token
from dragoman.core.metrics import EngineStats
from dragoman.pipeline.metrics import RequestMetrics
from tests.pipeline.failing_engine import Clock


def test_the_wait_for_the_first_batch_is_no_gap_between_its_tokens() -> None:
    stats, clock = EngineStats(), Clock()
    metrics = RequestMetrics(stats, clock)
    clock.now += 10
    metrics.observe_batch([Started(3), TextDelta(0, "abc", (Token(1, "a"), Token(2, "b"), Token(3, "c")))])
    assert (stats.ttft.sum, stats.inter_token.sum, stats.inter_token.count) == (10, 0, 2)
    clock.now += 1
    metrics.observe_batch([TextDelta(0, "d", (Token(4, "d"),))])
    assert (stats.inter_token.sum, stats.inter_token.count) == (1, 3)
