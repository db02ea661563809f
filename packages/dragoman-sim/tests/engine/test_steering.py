"""Control of a running simulator: faults, sleep and pause, replies, adapters, and their
metrics.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from starlette.types import Message
from tests.serving.harness import scope
from tests.serving.test_metrics import read

from dragoman.launch import build_greeting, build_models
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError
from dragoman_sim.engine.fault_injection import Fault, FaultPlan, parse_faults
from tests.virtual_time import SkippingLoop, run_skipping_time

from .serving import Twin, twin

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}]}


async def statuses(sim: Twin, count: int) -> list[int]:
    return [(await sim.post("/v1/chat/completions", HELLO)).status_code for _ in range(count)]


async def put_faults(sim: Twin, faults: object) -> httpx2.Response:
    async with sim.http() as client:
        return await client.put("/dragoman/faults", json=faults)


async def test_fault_on_third_request_returns_429_and_is_counted():
    async with twin() as sim:
        response = await put_faults(sim, [{"request": 3, "status": 429, "retry_after": 7}])
        assert response.json() == [{"request": 3, "status": 429, "retry_after": 7.0}]
        assert await statuses(sim, 4) == [200, 200, 429, 200]
        assert read(await sim.get("/metrics"), "dragoman:faults_total", kind="status") == 1


async def test_cut_fault_ends_stream_without_terminal_event():
    """The response stays incomplete, so that the server closes the connection."""
    sent: list[Message] = []
    left = asyncio.Event()

    async def receive() -> Message:
        if not sent and not left.is_set():
            left.set()
            return {
                "type": "http.request",
                "body": json.dumps({**HELLO, "stream": True}).encode(),
                "more_body": False,
            }
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async with twin() as sim:
        await sim.app(
            scope("/v1/chat/completions", {"x-dragoman-fault": '{"cut_after": 7}'}), receive, send
        )
        text = b"".join(message.get("body", b"") for message in sent).decode()
        assert text.count("data: ") == 8  # the role, and seven tokens
        assert all(word not in text for word in ("[DONE]", "error"))
        assert all(message.get("more_body", True) for message in sent)
        assert (
            read(await sim.get("/metrics"), "vllm:request_success_total", finished_reason="error")
            == 1
        )


async def test_fail_after_fault_ends_stream_with_dialect_error():
    async with twin() as sim:
        headers = {"x-dragoman-fault": '{"fail_after": 3, "message": "Out of memory."}'}
        async with sim.http() as client:
            answer = await client.post(
                "/v1/chat/completions", json={**HELLO, "stream": True}, headers=headers
            )
        assert "Out of memory." in answer.text
        assert "[DONE]" not in answer.text


async def test_hang_fault_delays_first_token():
    async with twin() as sim:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await sim.chat(headers={"x-dragoman-fault": '{"hang": 0.2}'}, max_tokens=2)
        assert loop.time() - began >= 0.2


def test_crash_fault_fails_all_requests_then_recovers():
    async def crash(loop: SkippingLoop) -> None:
        async with twin(time_scale=0.01) as sim:
            running = asyncio.create_task(sim.post("/v1/chat/completions", HELLO))
            while not sim.engine.health().running:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0)
            await put_faults(sim, {"request": 1, "crash": 600})
            assert await statuses(sim, 1) == [500]
            assert (await running).status_code == 500
            assert (await sim.get("/health")).status_code == 503
            assert await statuses(sim, 1) == [503]
            loop.skipped += 600
            while not sim.engine.health().ready:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert (await sim.get("/health")).status_code == 200

    run_skipping_time(crash)


async def test_crash_fault_in_header_returns_400():
    async with twin() as sim:
        answer = await sim.post("/v1/chat/completions", HELLO, {"x-dragoman-fault": '{"crash": 1}'})
        assert answer.status_code == 400
        assert sim.engine.health().ready


@pytest.mark.parametrize(
    "faults", [{}, {"status": 200}, {"hang": -1}, {"sattus": 429}, {"cut_after": 1.5}, 7, "x"]
)
async def test_invalid_fault_plan_returns_400(faults: object):
    async with twin() as sim:
        assert (await put_faults(sim, faults)).status_code == 400
        answer = await sim.post(
            "/v1/chat/completions", HELLO, {"x-dragoman-fault": json.dumps(faults)}
        )
        assert answer.status_code == 400


def test_fault_plan_selects_requests_reproducibly_by_seed():
    plan = FaultPlan(
        parse_faults([{"every": 3, "hang": 1}, {"probability": 0.3, "status": 500}]), seed=4
    )
    first = [plan.next_fault() for _ in range(60)]
    plan.set(plan.faults)
    assert [plan.next_fault() for _ in range(60)] == first
    assert all(first[number - 1] == Fault(every=3, hang=1.0) for number in range(3, 61, 3))
    assert 4 < sum(fault is not None and fault.status == 500 for fault in first) < 25


async def test_reply_endpoint_sets_next_replies():
    async with twin() as sim:
        assert (await sim.post("/dragoman/reply", {"reply": "As ordered."})).status_code == 204
        assert await sim.get_text() == "As ordered."
        assert await sim.get_text() != "As ordered."
        several = [{"reply": "One."}, {"reply": "Two."}]
        assert (await sim.post("/dragoman/reply", several)).status_code == 204
        assert [await sim.get_text(), await sim.get_text()] == ["One.", "Two."]
        for wrong in ({"replay": "x"}, [{"reply": "Never."}, {"replay": "x"}]):
            assert (await sim.post("/dragoman/reply", wrong)).status_code == 400
        assert await sim.get_text() != "Never."


async def test_sleep_holds_requests_and_clears_cache():
    async with twin() as sim:
        await sim.chat("word " * 100)
        assert (await sim.post("/sleep?level=1")).status_code == 200
        assert (await sim.get("/is_sleeping")).json() == {"is_sleeping": True}
        waiting = asyncio.create_task(sim.chat("word " * 100))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        scraped = await sim.get("/metrics")
        assert read(scraped, "vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1
        await sim.post("/wake_up")
        assert (await waiting)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_pause_mode_holds_or_aborts_running_request():
    async def pause(loop: SkippingLoop) -> dict[str, Any]:
        # A step takes a second or more, unless time is skipped.
        async with twin(time_scale=0.01) as sim:
            body = {**HELLO, "max_tokens": 300, "ignore_eos": True}
            running = asyncio.create_task(sim.post("/v1/chat/completions", body))
            while not sim.engine.stats()[0].generation_tokens:
                loop.skipped += 1
                await asyncio.sleep(0)
            await sim.post("/pause?mode=keep")
            count = sim.engine.stats()[0].generation_tokens
            loop.skipped += 600
            for _ in range(20):
                await asyncio.sleep(0)
            assert sim.engine.stats()[0].generation_tokens == count
            assert (await sim.get("/is_paused")).json() == {"is_paused": True}
            await sim.post("/resume")
            while sim.engine.stats()[0].generation_tokens == count:
                loop.skipped += 1
                await asyncio.sleep(0)
            await sim.post("/pause?mode=abort")
            answer = (await running).json()
            await sim.post("/resume")
            return answer

    answer = run_skipping_time(pause)
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert 0 < answer["usage"]["completion_tokens"] < 300


async def test_adapters_are_listed_loaded_and_unloaded_as_models():
    async with twin(lora_modules=("sql=/adapters/sql",)) as sim:
        listed = (await sim.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"], card["root"]) for card in listed][1:] == [
            ("sql", "sim-model", "/adapters/sql")
        ]
        await sim.chat("word " * 100)
        answer = await sim.chat("word " * 100, model="sql")
        assert answer["model"] == "sql"
        # Another adapter's KV cache cannot be reused.
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        more = {"lora_name": "more", "lora_path": "/adapters/more"}
        assert (await sim.post("/v1/load_lora_adapter", more)).status_code == 200
        assert (await sim.post("/v1/load_lora_adapter", more)).status_code == 400
        assert (await sim.chat(model="more"))["model"] == "more"
        assert (await sim.post("/v1/unload_lora_adapter", {"lora_name": "more"})).status_code == 200
        assert (
            await sim.post("/v1/chat/completions", {**HELLO, "model": "more"})
        ).status_code == 404
        assert (await sim.post("/v1/unload_lora_adapter", {"lora_name": "more"})).status_code == 404


async def test_sleep_requires_admin_api_key():
    async with twin(api_key=("user",), admin_api_key=("boss",)) as sim:
        for key, status in (("user", 403), ("boss", 200)):
            answer = await sim.post("/sleep", None, {"authorization": f"Bearer {key}"})
            assert answer.status_code == status


def test_warm_up_returns_503_until_ready():
    async def warm_up(loop: SkippingLoop) -> None:
        async with twin(warm_up=600) as sim:
            assert (await sim.get("/health")).status_code == 503
            assert await statuses(sim, 1) == [503]
            loop.skipped += 600
            while not sim.engine.health().ready:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0)
            assert await statuses(sim, 1) == [200]

    run_skipping_time(warm_up)


async def test_data_parallel_ranks_share_requests_with_own_metrics():
    async with twin(data_parallel_size=3) as sim:
        await asyncio.gather(*(sim.chat() for _ in range(9)))
        scraped = await sim.get("/metrics")
    counts = [
        read(scraped, "vllm:request_success_total", engine=str(rank), finished_reason="stop")
        for rank in range(3)
    ]
    assert sum(count or 0 for count in counts) == 9
    assert all(counts)


async def test_data_parallel_rank_header_selects_rank():
    async with twin(data_parallel_size=3) as sim:
        for rank in ("2", "2", "0"):
            await sim.chat(headers={"x-data-parallel-rank": rank})
        scraped = await sim.get("/metrics")
        refused = [
            await sim.post("/v1/chat/completions", HELLO, {"x-data-parallel-rank": rank})
            for rank in ("3", "-1", "one")
        ]
    counts = [
        read(scraped, "vllm:request_success_total", engine=str(rank), finished_reason="stop")
        for rank in range(3)
    ]
    assert counts == [1, 0, 2]
    assert {answer.status_code for answer in refused} == {400}


async def test_full_kv_cache_queues_requests_and_updates_gauges():
    """/metrics counts running streams; requests that do not fit wait and complete
    later.
    """
    async with twin(
        time_scale=10.0, num_gpu_blocks_override=9, max_model_len=100, block_size=16
    ) as sim:
        await sim.engine.pause("keep")
        requests = [
            sim.chat(f"{number} " + "word " * 40, max_tokens=12, ignore_eos=True)
            for number in range(4)
        ]
        answers = [asyncio.create_task(each) for each in requests]
        while sim.engine.health().waiting < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await sim.engine.resume()
        while not sim.engine.stats()[0].running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await sim.engine.pause("keep")
        scraped = await sim.get("/metrics")
        await sim.engine.resume()
        running, waiting = (
            read(scraped, f"vllm:num_requests_{state}") or 0 for state in ("running", "waiting")
        )
        assert running >= 1
        assert waiting >= 1
        assert running + waiting == 4
        assert (read(scraped, "vllm:kv_cache_usage_perc") or 0) >= 0.5
        ends = [(await each)["choices"][0]["finish_reason"] for each in answers]
    assert ends == ["length"] * 4


async def test_metrics_distinguish_token_sources_and_request_durations():
    prompt = "word " * 100
    async with twin() as sim:
        await sim.chat(prompt, max_tokens=3, ignore_eos=True)
        usage = (await sim.chat(prompt, max_tokens=7, ignore_eos=True, n=2))["usage"]
        scraped = await sim.get("/metrics")
    sources = {
        source: read(scraped, "vllm:prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }
    assert sum(count or 0 for count in sources.values()) == 3 * usage["prompt_tokens"]
    hits = read(scraped, "vllm:prefix_cache_hits_total")
    assert sources["external_kv_transfer"] == 0
    assert sources["local_cache_hit"] == hits
    assert hits
    assert hits > usage["prompt_tokens"]
    assert read(scraped, "vllm:prompt_tokens_cached_by_source_total", source="device") == hits
    assert read(scraped, "vllm:prompt_tokens_cached_total") == hits
    assert read(scraped, "vllm:request_prefill_kv_computed_tokens_sum") == sources["local_compute"]
    assert read(scraped, "vllm:request_max_num_generation_tokens_count") == 2, (
        "the choices of a request count as one"
    )
    assert read(scraped, "vllm:request_max_num_generation_tokens_sum") == 10
    assert read(scraped, "vllm:request_num_preemptions_count") == 3
    assert read(scraped, "vllm:mm_cache_queries_total") == 0


async def test_metrics_count_requests_waiting_for_adapter_as_deferred():
    adapters = ("a=/a", "b=/b")
    async with twin(time_scale=10.0, lora_modules=adapters, max_loras=1) as sim:
        streams = [
            asyncio.create_task(sim.chat(model=name, max_tokens=4000, ignore_eos=True))
            for name in ("a", "b")
        ]
        scraped = await sim.get("/metrics")
        while not (
            deferred := read(scraped, "vllm:num_requests_waiting_by_reason", reason="deferred")
        ):
            await asyncio.sleep(0)  # The scrape alone does not let the other tasks run.
            scraped = await sim.get("/metrics")
        assert deferred == read(scraped, "vllm:num_requests_waiting") == 1
        assert read(scraped, "vllm:num_requests_waiting_by_reason", reason="capacity") == 0
        assert read(scraped, "vllm:num_requests_running") == 1
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


def test_greeting_contains_simulated_vllm_version():
    settings = Settings(model="sim")
    assert (
        "simulating vLLM 0.33.0"
        in build_greeting(settings, build_models(settings, SystemClock()), 8000)[0]
    )


async def put_simulator(sim: Twin, change: object) -> httpx2.Response:
    async with sim.http() as client:
        return await client.put("/dragoman/simulator", json=change)


async def test_latency_can_be_changed_at_run_time():
    async with twin(async_scheduling=False) as sim:
        await sim.chat(max_tokens=3)
        changed = await put_simulator(sim, {"latency": {"base": 2.5, "per_context_token": 0}})
        await sim.chat(max_tokens=3, ignore_eos=True)
        (state,) = (await sim.get("/dragoman/simulator")).json()["data"]
        refused = [
            await put_simulator(sim, {"latency": each}) for each in ({"base": 0}, {"none": 1})
        ]
    assert changed.status_code == 200
    assert state["latency"]["base"] == 2.5
    assert state["time_scale"] == 1000
    assert min(state["ranks"][0]["step_seconds"][-2:]) >= 2.5
    assert state["ranks"][0]["step_seconds"][0] < 2.5
    assert [each.status_code for each in refused] == [400, 400]
    assert "latency" in refused[1].text


async def test_simulator_change_invalid_in_part_changes_nothing():
    async with twin() as sim:
        before = (await sim.get("/dragoman/simulator")).json()
        for latency in ({"none": 1}, {"base": 0}, {"base": 1e300}):
            change = {"time_scale": 5, "metrics": {"running": 7}, "latency": latency}
            assert (await put_simulator(sim, change)).status_code == 400
            assert (await sim.get("/dragoman/simulator")).json() == before


@pytest.mark.parametrize(
    "latency",
    [{"base": 3601}, {"per_draft": 1e300}, {"per_token": [{"beyond": 0, "seconds": 3601}]}],
)
async def test_latency_above_an_hour_is_rejected(latency: object):
    async with twin() as sim:
        refused = await put_simulator(sim, {"latency": latency})
        assert (await put_simulator(sim, {"latency": {"base": 3600}})).status_code == 200
    assert refused.status_code == 400
    assert "at most 3600 seconds" in refused.text


async def test_metrics_can_be_set_at_run_time():
    values = {"running": 7, "waiting": 30, "kv_cache_usage": 0.5}
    async with twin() as sim:
        assert (await put_simulator(sim, {"metrics": values})).status_code == 200
        scraped = await sim.get("/metrics")
        (state,) = (await sim.get("/dragoman/simulator")).json()["data"]
        assert (await put_simulator(sim, {"metrics": {"kv_cache_usage": 2}})).status_code == 400
        await put_simulator(sim, {"metrics": {}})
        restored = await sim.get("/metrics")
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    assert [read(scraped, f"vllm:{name}") for name in names] == [7, 30, 0.5]
    assert read(scraped, "vllm:num_requests_waiting_by_reason", reason="capacity") == 30
    assert state["metrics"] == values
    assert [read(restored, f"vllm:{name}") for name in names] == [0, 0, 0]


async def test_share_of_requests_gets_random_errors():
    plan = {"probability": 0.5, "errors": ["rate_limit", "model_not_found"]}
    async with twin(api_profile="openai") as sim:
        await put_faults(sim, plan)
        first = await statuses(sim, 30)
        await put_faults(sim, plan)
        assert await statuses(sim, 30) == first, "the same plan and seed"
        await put_faults(sim, {"errors": ["context_length"]})
        answer = await sim.post("/v1/chat/completions", HELLO)
        both = await put_faults(sim, {"errors": ["rate_limit"], "status": 500})
        unknown = await put_faults(sim, {"errors": ["bad_luck"]})
    assert set(first) == {200, 404, 429}
    assert 5 < first.count(200) < 25
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert (both.status_code, unknown.status_code) == (400, 400)


async def test_fault_header_with_several_errors_draws_one():
    names = ["rate_limit", "server_error", "model_not_found"]
    headers = {"x-dragoman-fault": json.dumps({"errors": names})}
    runs: list[list[int]] = []
    for _ in range(2):
        async with twin() as sim:
            answers = [await sim.post("/v1/chat/completions", HELLO, headers) for _ in range(30)]
            runs.append([answer.status_code for answer in answers])
    assert set(runs[0]) == {404, 429, 500}
    assert runs[0] == runs[1], "the same seed"


async def test_version_equals_simulated_vllm():
    async with twin() as sim:
        assert (await sim.get("/version")).json() == {"version": "0.33.0"}


async def test_full_queue_is_counted_as_rejection():
    async with twin(max_num_seqs=1, max_queued_requests=1, time_scale=1.0) as sim:
        running = [
            asyncio.create_task(
                sim.post("/v1/chat/completions", HELLO | {"max_tokens": 500, "ignore_eos": True})
            )
            for _ in range(6)
        ]
        done, pending = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result().status_code for each in done} == {503}
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        scraped = await sim.get("/metrics")
    count = read(scraped, "vllm:admission_rejections_total", reason="max_num_queued_reqs")
    assert count is not None
    assert count >= len(done)
    assert read(scraped, "vllm:admission_rejections_total", reason="max_num_queued_tokens") == 0


def test_tensor_parallel_size_unlike_profile_is_rejected():
    with pytest.raises(
        SettingsError,
        match=r"--tensor-parallel-size 2: the times of rtx4090-llama-3\.1-8b are those of 1",
    ):
        build_models(Settings(model="sim").replace(tensor_parallel_size=2), SystemClock())
    assert build_models(Settings(model="sim").replace(tensor_parallel_size=1), SystemClock())


async def test_scheduler_flags_are_passed_to_scheduler_config():
    flags: dict[str, Any] = {
        "max_loras": 3,
        "max_num_active_seqs": 5,
        "long_prefill_token_threshold": 64,
        "long_prefill_token_threshold_adaptive": True,
        "async_scheduling": False,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.05,
    }
    async with twin(**flags) as sim:
        (rank,) = sim.engine._ranks  # pyright: ignore[reportPrivateUsage]
        config = rank.core.scheduler.config
    assert {name: getattr(config, name) for name in flags} == flags


async def test_simulator_endpoint_reports_rank_state():
    async with twin(data_parallel_size=2, num_gpu_blocks_override=99, block_size=16) as sim:
        await asyncio.gather(*(sim.chat(max_tokens=40, ignore_eos=True) for _ in range(4)))
        (state,) = (await sim.get("/dragoman/simulator")).json()["data"]
        assert (state["model"], state["time_scale"], state["block_size"]) == (
            "sim-model",
            1000.0,
            16,
        )
        assert [
            (rank["blocks"], rank["used_blocks"], rank["running"], rank["waiting"])
            for rank in state["ranks"]
        ] == [(98, 0, 0, 0)] * 2
        for rank in state["ranks"]:
            # The first step computes the prompt; 39 more compute a token of each
            # sequence.
            assert rank["steps"] >= 40
            assert len(rank["step_seconds"]) == len(rank["step_tokens"]) == min(rank["steps"], 120)
            assert rank["step_tokens"][0] > rank["step_tokens"][-1]
            # In simulated time: a step of this model on this GPU takes about 20 ms.
            assert 0.01 < rank["step_seconds"][-1] < 0.05
            assert rank["cached_blocks"] > 0


async def test_time_scale_update_applies_to_running_engine():
    async with twin(time_scale=0.02) as sim:
        asking = asyncio.create_task(sim.chat(max_tokens=20, ignore_eos=True))
        while not sim.engine.health().running:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
        async with sim.http() as client:
            answer = await client.put("/dragoman/simulator", json={"time_scale": 1e6})
        assert answer.json()["data"][0]["time_scale"] == 1e6
        assert sim.engine.get_simulation().time_scale == 1e6
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        # At the first scale these steps would take longer than any test.
        assert (await sim.chat(max_tokens=200, ignore_eos=True))["usage"][
            "completion_tokens"
        ] == 200


@pytest.mark.parametrize(
    "change", [{}, {"time_scale": 0}, {"time_scale": "fast"}, {"time_scale": 1, "scale": 2}, []]
)
async def test_time_scale_invalid_update_is_rejected(change: object):
    async with twin() as sim, sim.http() as client:
        assert (await client.put("/dragoman/simulator", json=change)).status_code == 400
        assert (
            await client.put("/dragoman/simulator", json={"time_scale": 2, "model": "x"})
        ).status_code == 404
        assert sim.engine.get_simulation().time_scale == 1000.0


async def test_time_scale_update_with_kv_transfer_returns_400():
    async with twin(kv_transfer_config='{"kv_role": "kv_both"}') as sim, sim.http() as client:
        answer = await client.put("/dragoman/simulator", json={"time_scale": 2})
        assert answer.status_code == 400
        assert "--time-scale" in answer.json()["error"]["message"]
