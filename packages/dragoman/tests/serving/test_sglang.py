"""SGLang's routes with the embedded model: the requests of RL trainers for SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from dragoman.engines import tiny
from dragoman_check.rules import sglang as grammar

from .test_metrics import read
from .test_vllm import post, serving

LONG = {"max_new_tokens": 400, "temperature": 0, "ignore_eos": True}
# No machine is so busy that this one ends before it is aborted.
ENDLESS = {**LONG, "max_new_tokens": 20_000}


@pytest_asyncio.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(weights_dir=str(tiny.find_bundled_model())) as client:
        yield client


async def test_sglang_generate_ids_returns_token_details(http: httpx2.AsyncClient):
    params = {"max_new_tokens": 6, "temperature": 0}
    fields = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    result = await post(
        http, "/generate", input_ids=[5, 6, 7], sampling_params=params, **fields, rid="mine"
    )
    grammar.check_object(result)
    meta = result["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["weight_version"]) == ("mine", 3, "default")
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert [id for _, id, _ in meta["input_token_logprobs"]] == [5, 6, 7]
    vllm = await post(
        http,
        "/inference/v1/generate",
        token_ids=[5, 6, 7],
        sampling_params={"max_tokens": 6, "temperature": 0},
    )
    assert result["output_ids"] == vllm["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("prompt", "n", "lengths"),
    [
        ({"input_ids": [5, 6, 7]}, 1, [3]),
        ({"text": ["a", "a b"]}, 2, [1, 1, 2, 2]),
        ({"input_ids": [[5, 6], [7]]}, 1, [2, 1]),
    ],
)
async def test_sglang_stream_equals_full_response(
    http: httpx2.AsyncClient, prompt: dict[str, Any], n: int, lengths: list[int]
):
    params = {"max_new_tokens": 8, "temperature": 1.0, "sampling_seed": 4, "n": n}
    body = {**prompt, "sampling_params": params, "return_logprob": True, "rid": "r"}
    result = await post(http, "/generate", **body)
    streamed = await http.post("/generate", json={**body, "stream": True})
    full: list[Any] = result if len(lengths) > 1 else [result]
    last = grammar.check_stream(streamed.content, choices=len(lengths))
    for answer in (*last, *full):
        answer["meta_info"].pop("cached_tokens")  # the second time a prompt may be cached
    assert last == full
    assert [answer["meta_info"]["prompt_tokens"] for answer in full] == lengths


async def test_sglang_pause_update_weights_continue(http: httpx2.AsyncClient):
    body = {"input_ids": [5, 6, 7], "sampling_params": LONG, "stream": True}
    running = asyncio.create_task(http.post("/generate", json=body))
    while not read(await http.get("/metrics"), "vllm:generation_tokens_total"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (await post(http, "/pause_generation", mode="retract"))["status"] == "ok"
    update = {
        "model_path": str(tiny.find_bundled_model()),
        "weight_version": "step-1",
        "flush_cache": False,
    }
    updated = await http.post("/update_weights_from_disk", json=update)
    assert updated.json()["success"]
    assert "flush_cache" in updated.headers["x-dragoman-warnings"]
    assert (await http.get("/get_weight_version")).json() == {"weight_version": "step-1"}
    assert (await http.get("/model_info")).json()["weight_version"] == "step-1"
    await post(http, "/continue_generation")
    (last,) = grammar.check_stream((await running).content)
    meta = last["meta_info"]
    assert meta["weight_version"] == "step-1"
    assert [span["version"] for span in meta["weight_versions"]] == ["default", "step-1"]


async def test_sglang_abort_all_returns_partial_output(http: httpx2.AsyncClient):
    running = asyncio.create_task(post(http, "/generate", text="Once", sampling_params=ENDLESS))
    while not read(await http.get("/metrics"), "vllm:generation_tokens_total"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (await http.post("/abort_request", json={"rid": "x"})).status_code == 400
    assert (await http.post("/abort_request", json={"abort_all": True})).status_code == 200
    result = await running
    assert result["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < result["meta_info"]["completion_tokens"] < 20_000


async def test_sglang_pause_by_abort_keeps_new_requests_waiting(http: httpx2.AsyncClient):
    assert (await http.post("/pause_generation")).status_code == 200
    waiting = asyncio.create_task(
        post(http, "/generate", text="Once", sampling_params={"max_new_tokens": 2})
    )
    while not (await http.get("/load")).json()["server_load"]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not waiting.done()
    await post(http, "/continue_generation")
    assert (await waiting)["meta_info"]["completion_tokens"] == 2


async def test_sglang_release_memory_supports_only_kv_cache(http: httpx2.AsyncClient):
    released = await http.post("/release_memory_occupation")
    assert released.status_code == 200
    assert "weights are kept" in released.headers["x-dragoman-warnings"]
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
    await http.post("/resume_memory_occupation", json={"tags": ["weights"]})
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
    await http.post("/resume_memory_occupation", json={"tags": ["kv_cache"]})
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (
        await http.post("/release_memory_occupation", json={"tags": ["weights"]})
    ).status_code == 400
    assert (await http.post("/release_memory_occupation", json={"tags": ["x"]})).status_code == 400


@pytest.mark.parametrize("path", ["/update_weights_from_tensor", "/init_weights_update_group"])
async def test_sglang_tensor_weight_updates_rejected_with_alternative(
    http: httpx2.AsyncClient, path: str
):
    rejected = await http.post(path, json={"serialized_named_tensors": ["gASV"]})
    assert rejected.status_code == 400
    assert "safetensors" in rejected.json()["error"]["message"]


async def test_sglang_other_routes_respond(http: httpx2.AsyncClient):
    for path in ("/health_generate", "/flush_cache", "/get_model_info"):
        assert (await http.get(path)).status_code == 200
    wrong = {"model_path": str(tiny.find_bundled_model()), "load_format": "pt"}
    assert (await http.post("/update_weights_from_disk", json=wrong)).status_code == 400
    assert (
        await http.post("/update_weights_from_disk", json={"model_path": "/etc"})
    ).status_code == 403
    failed = await http.post(
        "/generate", json={"text": "a", "sampling_params": {"temperature": "hot"}}
    )
    assert (failed.status_code, failed.json()["error"]["param"]) == (
        400,
        "sampling_params.temperature",
    )


async def test_sglang_loads_count_running_and_waiting_requests(http: httpx2.AsyncClient):
    """slime sends aborts until the loads are zero."""
    idle = (await http.get("/v1/loads?include=core,disagg,queues")).json()
    assert idle["loads"] == [
        {"num_running_reqs": 0, "num_waiting_reqs": 0, "num_total_reqs": 0, "dp_rank": 0}
    ]
    assert (idle["dp_rank_count"], idle["aggregate"]["total_reqs"]) == (1, 0)
    running = asyncio.create_task(post(http, "/generate", text="Once", sampling_params=ENDLESS))
    while not read(await http.get("/metrics"), "vllm:generation_tokens_total"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    busy = (await http.get("/v1/loads")).json()
    assert busy["aggregate"] == {"total_running_reqs": 1, "total_waiting_reqs": 0, "total_reqs": 1}
    assert busy["loads"][0]["num_running_reqs"] == 1
    await http.post("/abort_request", json={"abort_all": True})
    await running
    assert (await http.get("/v1/loads")).json()["loads"] == idle["loads"]
    assert (await http.get("/v1/loads?format=prometheus")).status_code == 400


async def test_sglang_generate_accepts_slime_parameters(http: httpx2.AsyncClient):
    params = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 4,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    result = await post(
        http, "/generate", input_ids=[5, 6, 7], sampling_params=params, return_logprob=True
    )
    assert [id for _, id, _ in result["meta_info"]["output_token_logprobs"]] == result["output_ids"]
