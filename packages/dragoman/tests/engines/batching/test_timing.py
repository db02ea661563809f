"""Queue times: reported after a sequence's first step, but measured at the start of the
step.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from dragoman.core.engine_stats import EngineStats
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Token,
    Usage,
)
from dragoman.core.token_engine import Scheduled, TokenRequest
from dragoman.engines.batching import BatchingEngine, EngineConfig, build_rng
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.tiny.paged_llama import PagedLlama
from dragoman.pipeline.driver import BatchStream
from dragoman.pipeline.request_metrics import RequestMetrics
from dragoman.pipeline.response_times import TimingsReport

from ..harness import GREEDY, AllowedTokensMatcher, Client

ASK = TokenRequest(id="a", prompt=tuple(range(3, 20)), max_tokens=4, sampling=GREEDY)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SlowMatcher(AllowedTokensMatcher):
    """A matcher that makes each step take two seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__([range(96)] * 4)
        self._clock = clock

    def mask(self) -> bytes:
        self._clock.now += 2.0
        return super().mask()


async def test_scheduled_output_reports_start_of_first_step(small_model: Llama) -> None:
    clock = Clock()
    engine = BatchingEngine(PagedLlama(small_model), EngineConfig(512, 2048), build_rng, clock)
    await engine.start()
    client = Client(engine)
    outputs = client.send(
        TokenRequest(
            id="x", prompt=ASK.prompt, max_tokens=4, sampling=GREEDY, matcher=SlowMatcher(clock)
        )
    )
    await client.ends(outputs)
    await engine.stop()
    assert [output for output in outputs if isinstance(output, Scheduled)] == [
        Scheduled("x", 0, 16, 2.0)
    ]


async def answer() -> AsyncGenerator[list[Event]]:
    """Yield events as an engine that starts one second after the arrival and reports
    that two seconds later.
    """
    token = TextDelta(0, "a", (Token(1, "a"),))
    yield [Started(17, elapsed=2.0), token]
    yield [token]
    yield [ChoiceFinished(0, FinishReason.LENGTH), Finished(Usage(17, 2))]


async def test_prefill_time_starts_at_start_of_step() -> None:
    clock = Clock()
    stats = EngineStats()
    metrics = RequestMetrics(stats, clock)
    report = TimingsReport(clock)
    timed = BatchStream(answer(), metrics, report)
    clock.now += 3.0
    events = [event async for batch in timed for event in batch]
    assert report.prefill_seconds == pytest.approx(2.0)
    sums = {
        name: getattr(stats, name).sum
        for name in ("queue", "prefill", "decode", "inference", "ttft")
    }
    assert sums == {"queue": 1.0, "prefill": 2.0, "decode": 0.0, "inference": 2.0, "ttft": 3.0}
    assert isinstance(events[-1], Finished)
