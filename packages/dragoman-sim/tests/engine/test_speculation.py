"""Speculative decoding: acceptance rates, the speedup, and unchanged answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.latency import LatencyModel, StepLoad
from dragoman_sim.engine.scheduler import SchedulerStats, SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.speculative_decoding import (
    DraftAcceptance,
    SpeculativeConfig,
    parse_acceptance_rates,
    parse_speculative_config,
)
from dragoman_sim.lab.replay import replay

from .checked_scheduler import sequence
from .serving import twin

SPECULATIVE = '{"method": "eagle3", "num_speculative_tokens": 3, "model": "drafter"}'
modes = pytest.mark.parametrize("is_async", [False, True])


def serve(
    rates: tuple[float, ...], drafts: int, workload: list[WorkloadRequest], *, is_async: bool
) -> tuple[list[Timing], SchedulerStats]:
    config = SimulatedSchedulerConfig(
        num_gpu_blocks=400,
        async_scheduling=is_async,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=drafts,
    )
    core = EngineCore(
        SimulatedScheduler(config),
        lambda _: 1.0,
        DraftAcceptance(rates).count_sampled if rates else None,
    )
    timings = replay(workload, [core]).timings
    assert core.scheduler.pool.num_used == 0
    return timings, core.scheduler.stats


def test_draft_acceptance_matches_rates() -> None:
    acceptance = DraftAcceptance((0.8, 0.4), seed=5)
    request = sequence("a", [1], 100)
    counts = Counter[int]()
    for index in range(20_000):
        request.num_output_tokens = index
        counts[acceptance.count_sampled(request, 3)] += 1
    total = sum(counts.values())
    at_least = [
        sum(count for sampled, count in counts.items() if sampled > position) / total
        for position in (1, 2, 3)
    ]
    assert at_least == pytest.approx([0.8, 0.4, 0.2], abs=0.015)
    assert acceptance.count_sampled(request, 0) == 1


def test_draft_acceptance_is_independent_of_other_requests() -> None:
    one = sequence("a", [1], 10)
    other = sequence("b", [1], 10)
    acceptance = DraftAcceptance(seed=1)
    alone: list[int] = []
    beside: list[int] = []
    for index in range(20):
        one.num_output_tokens = other.num_output_tokens = index
        alone.append(acceptance.count_sampled(one, 3))
        acceptance.count_sampled(other, 3)
        beside.append(DraftAcceptance(seed=1).count_sampled(one, 3))
    assert alone == beside
    assert len(set(alone)) > 1


@modes
def test_accepted_drafts_reduce_steps(is_async: bool) -> None:
    workload = [WorkloadRequest("a", 0.0, 20, 41), WorkloadRequest("b", 0.0, 20, 6)]
    (first, second), stats = serve((1.0,), 3, workload, is_async=is_async)
    assert (first.last_token_s, second.last_token_s) == (11.0, 3.0), (
        "four tokens per step after the prompt"
    )
    assert first.tpot == pytest.approx(10 / 40)
    assert second.tpot == pytest.approx(2 / 5)
    assert stats.num_accepted_tokens == 41 + 6 - 2 - stats.num_drafts


@modes
def test_rejected_drafts_keep_timings_unchanged(is_async: bool) -> None:
    workload = [WorkloadRequest(f"r{index}", float(index), 30 + index, 20) for index in range(8)]
    expected, _ = serve((), 0, workload, is_async=is_async)
    timings, stats = serve((0.0,), 3, workload, is_async=is_async)
    assert timings == expected
    assert stats.num_accepted_tokens == 0
    assert stats.num_draft_tokens == 3 * stats.num_drafts > 0


def test_compute_seconds_includes_draft_cost() -> None:
    latency = LatencyModel(base=0.01, draft_base=0.002, per_draft=1e-4)
    assert latency.compute_seconds(StepLoad(8)) == pytest.approx(0.01)
    assert latency.compute_seconds(StepLoad(8, drafts=6)) == pytest.approx(0.0126)


async def test_speculation_keeps_answers_and_counts_metrics() -> None:
    question: dict[str, Any] = {"seed": 3, "max_tokens": 60}
    async with twin() as plain:
        expected = await plain.chat("Tell me a story.", **question)
    async with twin(speculative_config=SPECULATIVE, sim_acceptance_rates="0.9,0.8,0.7") as sim:
        answer = await sim.chat("Tell me a story.", **question)
        assert answer["choices"] == expected["choices"]
        assert answer["usage"] == expected["usage"]
        text = expected["choices"][0]["message"]["content"]
        stop = text[20:24]
        stopped = await sim.chat("Tell me a story.", stop=[stop], **question)
        assert stopped["choices"][0]["message"]["content"] == text[: text.index(stop)]
        exact = await sim.chat(seed=4, max_tokens=7, ignore_eos=True)
        assert exact["usage"]["completion_tokens"] == 7
        metrics = (await sim.get("/metrics")).text
        engine = sim.engine.stats()[0]
        assert engine.running == engine.waiting == 0
        assert engine.kv_cache_usage == 0
    values = {
        name: float(value)
        for name, value in re.findall(r"^vllm:spec_decode_(\w+)\{[^}]*\} (\S+)$", metrics, re.M)
        if "per_pos" not in name
    }
    assert (
        values["num_draft_tokens_total"]
        > values["num_accepted_tokens_total"]
        > values["num_drafts_total"]
    )
    by_position = [
        float(value) for value in re.findall(r'per_pos_total\{.*position="\d".*\} (\S+)', metrics)
    ]
    assert len(by_position) == 3
    assert by_position == sorted(by_position, reverse=True)
    assert sum(by_position) == values["num_accepted_tokens_total"]


async def test_stream_with_drafts_keeps_text_and_logprobs() -> None:
    async with twin(speculative_config=SPECULATIVE, sim_acceptance_rates="1") as sim:
        question = {
            "seed": 3,
            "max_tokens": 30,
            "messages": [{"role": "user", "content": "Hi."}],
            "logprobs": True,
        }
        whole = (await sim.post("/v1/chat/completions", question)).json()
        streamed = (await sim.post("/v1/chat/completions", question | {"stream": True})).text
    chunks: list[Any] = [
        json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")
    ]
    deltas: list[Any] = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert (
        "".join(delta["delta"].get("content") or "" for delta in deltas)
        == whole["choices"][0]["message"]["content"]
    )
    scores: list[Any] = []
    for delta in deltas:
        scores += (delta.get("logprobs") or {"content": []})["content"]
    assert scores == whole["choices"][0]["logprobs"]["content"]


def test_parse_speculative_config_reads_vllm_settings() -> None:
    config = parse_speculative_config(SPECULATIVE).merge_into(SimulatedSchedulerConfig())
    assert (config.num_speculative_tokens, config.num_lookahead_tokens) == (3, 3)
    ngram = SpeculativeConfig(5, "ngram", prompt_lookup_max=4).merge_into(
        SimulatedSchedulerConfig()
    )
    assert (ngram.num_speculative_tokens, ngram.num_lookahead_tokens) == (5, 0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "num_speculative_tokens"),
        ('{"num_speculative_tokens": 0}', "from 1 to 64"),
        ('{"num_speculative_tokens": 2, "method": "dflash"}', "is not simulated"),
        ('{"num_speculative_tokens": 2, "disable_by_batch_size": 4}', "disable_by_batch_size"),
        ("3", "--speculative-config"),
    ],
)
def test_parse_speculative_config_unsupported_raises_with_name(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_speculative_config(text)


@pytest.mark.parametrize("text", ["0.5,0.6", "1.2", "x", ""])
def test_parse_acceptance_rates_invalid_raises(text: str) -> None:
    with pytest.raises(ValueError, match="rates"):
        parse_acceptance_rates(text)
