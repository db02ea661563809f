"""Request metrics that the pipeline counts for engines without their own."""

from __future__ import annotations

from dataclasses import dataclass

from tests.pipeline.failing_engine import Clock

from dragoman.constraints.bounded_compiler import BoundedCompiler
from dragoman.core.capabilities import Capabilities
from dragoman.core.engine import Health
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
from dragoman.core.request import GenerateRequest
from dragoman.core.token_engine import Ended, OutputCallback, Scheduled, TokenRequest
from dragoman.engines import tiny
from dragoman.pipeline.admit import admit
from dragoman.pipeline.detokenizer import Vocabulary
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.request_metrics import ModelMetrics, RequestMetrics
from dragoman.pipeline.run_counts import RunCounts
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.testing.engine_under_test import build_terms


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


class SlowTokenizer(HfTokenizer):
    """A tokenizer that takes a second for each prompt."""

    def __init__(self, clock: Clock) -> None:
        super().__init__((tiny.find_bundled_model() / "tokenizer.json").read_bytes())
        self._clock = clock

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        self._clock.now += 1
        return super().encode(text, special=special, add_special_tokens=add_special_tokens)


class ImmediateEngine:
    """An engine that ends each sequence when it arrives."""

    capabilities = Capabilities(frozenset(), frozenset())

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        deliver(Scheduled(request.id, 0))
        deliver(Ended(request.id, FinishReason.LENGTH))

    def abort(self, id: str) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


async def test_queue_time_of_each_prompt_begins_with_the_call() -> None:
    clock = Clock()
    tokenizer = SlowTokenizer(clock)
    compiler = BoundedCompiler(tokenizer, [0])
    backend = TokenBackend(
        ImmediateEngine(), tokenizer, Vocabulary(tokenizer), compiler, frozenset({0})
    )
    model = ServedModel("m", backend, 4096, 1_700_000_000)
    meters = ModelMetrics(Models([model]), clock)
    arrival = clock.now
    run = await admit(model, [GenerateRequest("m", prompt="a")] * 2, build_terms(), meters)
    async for _ in run.batches:
        pass
    ((_, (stats,)),) = meters
    assert clock.now >= arrival + 2
    assert (stats.queue.count, stats.queue.sum) == (2, 2 * (clock.now - arrival))
