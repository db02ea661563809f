"""Defects of other simulators are absent. Tested over HTTP, where those defects are
visible.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.engine.block_pool import SimulatedBlockPool
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.latency import LatencyModel, StepLoad, TokenCost
from dragoman_sim.engine.profile import ProfileError, dumps, list_profiles, load, loads
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.replay import build_sequence

from .serving import twin

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}]}


async def test_prompt_over_token_budget_completes():
    async with twin(max_num_batched_tokens=64, max_num_seqs=4) as sim:
        assert (await sim.chat("word " * 500, max_tokens=3))["usage"]["completion_tokens"] == 3
        assert (await sim.chat(max_tokens=2))["usage"]["completion_tokens"] == 2


async def test_completions_two_prompts_return_two_choices():
    async with twin() as sim:
        answer = (
            await sim.post("/v1/completions", {"prompt": ["One", "Two"], "max_tokens": 3})
        ).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]


async def test_assistant_message_with_null_content_is_accepted():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [*HELLO["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    async with twin() as sim:
        turns.append({"role": "tool", "tool_call_id": "c", "content": "done"})
        assert (await sim.post("/v1/chat/completions", {"messages": turns})).status_code == 200


async def test_unknown_model_returns_404():
    async with twin() as sim:
        assert (
            await sim.post("/v1/chat/completions", {**HELLO, "model": "other"})
        ).status_code == 404


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": -2}, {"max_tokens": 1.5}, {"n": 0}, {"temperature": -1}]
)
async def test_stream_with_invalid_number_returns_400(wrong: dict[str, Any]):
    async with twin() as sim:
        assert (
            await sim.post("/v1/chat/completions", {**HELLO, **wrong, "stream": True})
        ).status_code == 400


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
async def test_max_tokens_0_is_rejected_and_minus_1_fills_context(route: str):
    ask = {"prompt": "Hello."} if route == "/v1/completions" else HELLO
    async with twin(max_model_len=64) as sim:
        refused = await sim.post(route, {**ask, "max_tokens": 0})
        rest = await sim.post(route, {**ask, "max_tokens": -1, "ignore_eos": True})
    assert refused.status_code == 400
    assert "max_tokens" in refused.text
    assert rest.json()["usage"]["total_tokens"] == 64
    assert rest.json()["choices"][0]["finish_reason"] == "length"


def test_late_driver_wakeups_do_not_accumulate_drift():
    core = EngineCore(
        SimulatedScheduler(SimulatedSchedulerConfig(), SimulatedBlockPool(64)), lambda _: 0.02
    )
    core.add(build_sequence(WorkloadRequest("r", 0.0, 3, 500), 16, 0.0))
    core.step(0.0)
    ends: list[float] = []
    while core.next_step_end is not None:
        ends.append(core.step(core.next_step_end + 0.013).at)
    assert ends == pytest.approx([0.02 * step for step in range(1, 501)])


@pytest.mark.parametrize("seconds", [0.0, -0.001, float("nan"), float("inf")])
def test_profile_with_zero_step_time_is_rejected(seconds: float):
    with pytest.raises(ValueError, match="no step is free"):
        LatencyModel(base=seconds, per_token=(TokenCost(0, 1e-5),))
    text = dumps(load("rtx4090-llama-3.1-8b"))
    wrong, changes = re.subn(r"(?m)^  base: .*$", f"  base: {seconds}", text)
    assert changes == 1
    with pytest.raises(ProfileError, match="base"):
        loads(wrong)


def test_latency_of_extreme_load_is_positive_and_increases():
    for profile in map(load, list_profiles()):
        alone = StepLoad(1, 1, 0.0, 1)
        crowd = StepLoad(10**6, 10**9, 1e12, 10**4)
        assert (
            0
            < profile.latency.compute_seconds(StepLoad(0))
            <= profile.latency.compute_seconds(alone)
            < profile.latency.compute_seconds(crowd)
        )


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"const": "x"},
        "who": {"$ref": "#/$defs/who"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 4},
        "size": {"anyOf": [{"type": "integer", "minimum": 5, "maximum": 50}, {"type": "null"}]},
    },
    "required": ["kind", "who", "tags", "size"],
    "additionalProperties": False,
    "$defs": {"who": {"enum": ["me", "you"]}},
}


@pytest.mark.parametrize("seed", range(8))
async def test_generated_json_satisfies_complex_schema(seed: int):
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    async with twin() as sim:
        text = await sim.get_text(response_format=shape, seed=seed, max_tokens=600)
    jsonschema_rs.validate(SCHEMA, json.loads(text or ""))


async def test_logprobs_match_completion_tokens_and_top_lists():
    async with twin() as sim:
        answer = await sim.chat(logprobs=True, top_logprobs=3, max_tokens=12, ignore_eos=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"] == 12
    for entry in entries:
        listed = {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
        assert listed[entry["token"]] == entry["logprob"]


async def test_stream_sends_tokens_as_generated():
    async with twin(time_scale=50.0) as sim:
        stream = await sim.openai().chat.completions.create(
            model=sim.model,
            messages=HELLO["messages"],
            max_tokens=20,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        pieces = [
            chunk async for chunk in stream if chunk.choices and chunk.choices[0].delta.content
        ]
        stats = sim.engine.stats()[0]
    assert len(pieces) >= 18  # a token a piece, but for halves of characters
    assert stats.inter_token.count == 19
    # Durations are as modeled, and not rounded to milliseconds.
    assert 0.0001 < stats.inter_token.sum / 19 < 0.01
