"""`cache_hit_threshold`: requests that end because too little of their prompt is cached."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.serving.test_metrics import read

from dragoman_sim.engine.block_hashes import CacheKeys, TokenContents
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.sequence import SequenceStatus, SimulatedSequence

from .serving import Twin, twin

PROMPT = list(range(300, 460))
"""Ten blocks of 16 tokens. The last one is never read from the cache, so the largest
share is 0.9.
"""
FORCED = {"x-cache-threshold-finish-reason": "true"}


async def complete(sim: Twin, headers: dict[str, str] | None = None, **more: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True} | more
    answer = await sim.post("/v1/completions", body, headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def complete_reason(sim: Twin, headers: dict[str, str] | None = None, **more: Any) -> str:
    return (await complete(sim, headers, **more))["choices"][0]["finish_reason"]


async def read_chunks(sim: Twin, path: str, **body: Any) -> list[Any]:
    answer = await sim.post(path, body | {"stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_uncached_prompt_below_threshold_ends_empty():
    async with twin() as sim:
        for _ in range(2):  # Nothing was computed, so nothing is cached.
            answer = await complete(sim, cache_hit_threshold=0.01)
            (choice,) = answer["choices"]
            assert (choice["text"], choice["finish_reason"]) == ("", "cache_threshold")
            usage = answer["usage"]
            assert usage["prompt_tokens"] == usage["total_tokens"] == len(PROMPT)
            assert usage["completion_tokens"] == 0
            assert usage["prompt_tokens_details"] is None


async def test_threshold_equal_to_cached_share_answers():
    async with twin() as sim:
        await complete(sim)
        assert await complete_reason(sim, cache_hit_threshold=0.9) == "length"
        assert await complete_reason(sim, cache_hit_threshold=0.91) == "cache_threshold"
        assert await complete_reason(sim, cache_hit_threshold=1) == "cache_threshold"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_threshold_stream_sends_reason_in_first_chunk(path: str):
    """llm-d's router decides by the first chunk whether it must prefill."""
    prompt = {"prompt": PROMPT, "messages": [{"role": "user", "content": "Hello."}]}
    body = {name: prompt[name] for name in (("prompt",) if "chat" not in path else ("messages",))}
    async with twin() as sim:
        first, usage = await read_chunks(
            sim, path, **body, cache_hit_threshold=0.5, stream_options={"include_usage": True}
        )
    assert [choice["finish_reason"] for choice in first["choices"]] == ["cache_threshold"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 0


async def test_threshold_choices_and_prompts_each_end():
    async with twin() as sim:
        await complete(sim)
        uncached = list(range(500, 660))
        answer = await complete(sim, prompt=[PROMPT, uncached], n=2, cache_hit_threshold=0.5)
        reasons = [choice["finish_reason"] for choice in answer["choices"]]
        assert reasons == ["length", "length", "cache_threshold", "cache_threshold"]
        streamed = await sim.post(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "Hello."}],
                "n": 3,
                "stream": True,
                "cache_hit_threshold": 0.5,
            },
        )
        assert streamed.text.count('"finish_reason":"cache_threshold"') == 3


async def test_threshold_with_prompt_logprobs_ends_request():
    async with twin() as sim:
        answer = await complete(sim, prompt_logprobs=1, cache_hit_threshold=0.5)
        assert answer["choices"][0]["finish_reason"] == "cache_threshold"
        assert len(answer["choices"][0]["prompt_logprobs"]) == len(PROMPT)


@pytest.mark.parametrize(
    ("value", "reason"), [("true", "cache_threshold"), ("false", "length"), ("x", "length")]
)
async def test_threshold_header_forces_finish_reason(value: str, reason: str):
    async with twin() as sim:
        await complete(sim)
        headers = {"X-Cache-Threshold-Finish-Reason": value}
        assert await complete_reason(sim, headers, cache_hit_threshold=0) == reason


async def test_global_threshold_applies_unless_request_sets_one():
    async with twin(global_cache_hit_threshold=0.5) as sim:
        assert await complete_reason(sim) == "cache_threshold"
        assert await complete_reason(sim, cache_hit_threshold=0) == "length"
        assert await complete_reason(sim) == "length"
        assert await complete_reason(sim, cache_hit_threshold=0.95) == "cache_threshold"


async def test_global_threshold_marks_messages_answer_as_truncated():
    async with twin(global_cache_hit_threshold=0.5) as sim:
        answer = await sim.post(
            "/v1/messages",
            {"max_tokens": 4, "messages": [{"role": "user", "content": "Hello."}]},
        )
        assert (answer.json()["content"], answer.json()["stop_reason"]) == ([], "max_tokens")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_threshold_field_of_other_dialects_is_rejected(path: str):
    async with twin() as sim:
        body = {
            "/v1/messages": {"max_tokens": 4, "messages": [{"role": "user", "content": "Hello."}]},
            "/v1/responses": {"input": "Hello."},
        }[path]
        answer = await sim.post(path, body | {"cache_hit_threshold": 0.5})
        assert answer.status_code == 400
        assert "cache_hit_threshold" in answer.text
        assert (await sim.post(path, body | {"cache_hit_threshold": 0})).status_code == 200


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", True])
async def test_threshold_out_of_range_is_rejected_by_name(value: object):
    async with twin() as sim:
        answer = await sim.post("/v1/completions", {"prompt": "x", "cache_hit_threshold": value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "cache_hit_threshold"


async def test_threshold_without_prefix_cache_is_ignored_with_warning():
    async with twin(enable_prefix_caching=False, global_cache_hit_threshold=0.5) as sim:
        answer = await sim.post(
            "/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "cache_hit_threshold": 0.9}
        )
        assert answer.json()["choices"][0]["finish_reason"] != "cache_threshold"
        assert "cache_hit_threshold is ignored" in answer.headers["x-dragoman-warnings"]
        assert await complete_reason(sim, FORCED) == "cache_threshold"


async def test_ended_below_threshold_is_counted_once():
    async with twin() as sim:
        await complete(sim)
        await complete(sim, cache_hit_threshold=0.95)
        metrics = await sim.get("/metrics")
        reason = "cache_threshold"
        assert read(metrics, "vllm:request_success_total", finished_reason=reason) == 1
        assert read(metrics, "vllm:e2e_request_latency_seconds_count") == 2
        assert read(metrics, "vllm:request_prefill_kv_computed_tokens_sum") == len(PROMPT)
        assert read(metrics, "vllm:prefix_cache_queries_total") == 2 * len(PROMPT)
        assert read(metrics, "vllm:prefix_cache_hits_total") == 144
        assert read(metrics, "vllm:num_requests_waiting") == 0
        assert read(metrics, "vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize("more", [{}, {"prompt_logprobs": 1}, {"n": 2}])
async def test_abort_of_waiting_request_ends_answer(more: dict[str, Any]):
    async with twin(max_num_seqs=1, time_scale=1.0) as sim:
        running = asyncio.create_task(complete(sim, max_tokens=2000))
        waiting = asyncio.create_task(complete(sim, **more))
        while sim.engine.stats()[0].waiting < more.get("n", 1):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await sim.post("/pause?mode=abort")
        for answer in (await running, await waiting):
            assert {choice["finish_reason"] for choice in answer["choices"]} == {"abort"}


def build_sequence(id: str, *, threshold: float = 0.0, remote: int = 0) -> SimulatedSequence:
    contents = TokenContents(16, [*PROMPT], CacheKeys())
    return SimulatedSequence(
        id,
        num_prompt_tokens=len(PROMPT),
        max_tokens=1,
        contents=contents,
        num_remote_tokens=remote,
        cache_hit_threshold=threshold,
    )


def test_scheduler_counts_remote_tokens_as_cached():
    scheduler = SimulatedScheduler(SimulatedSchedulerConfig())
    remote = build_sequence("remote", threshold=0.5, remote=80)
    scheduler.add(remote)
    assert scheduler.schedule().below_threshold == []
    assert remote.status is SequenceStatus.FETCHING
    less = build_sequence("less", threshold=0.5, remote=79)
    scheduler.add(less)
    assert scheduler.schedule().below_threshold == [less]
    assert less.status is SequenceStatus.FINISHED


def test_scheduler_keeps_order_after_end_below_threshold():
    scheduler = SimulatedScheduler(SimulatedSchedulerConfig())
    first, second, third = (
        build_sequence(id, threshold=threshold)
        for id, threshold in (("a", 0.0), ("b", 0.95), ("c", 0.0))
    )
    for sequence in (first, second, third):
        scheduler.add(sequence)
    step = scheduler.schedule()
    assert step.admitted == [first, third]
    assert step.below_threshold == [second]
    assert scheduler.num_waiting == 0
