"""A settings file with several models becomes a server that has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.engines.hardware import MAX_TORCH_KV_BYTES
from dragoman.launch import build_models
from dragoman.launch.memory_estimate import measure_memory, measure_weights
from dragoman.launch.model_plan import plan_model
from dragoman.pipeline.model_lifecycle import ModelState
from dragoman.pipeline.request_queue import QueueShare
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings, SettingsError, load_settings

MODELS = """{
    "house": {"model": "tiny", "aliases": ["claude-*", "gpt"], "pinned": true, "max_model_len": 2048},
    "echo": {"model": "scripted", "ttl": 5},
    "broken": "BROKEN.gguf"
}"""  # noqa: E501


def settings(models: str = MODELS, **more: Any) -> Settings:
    return load_settings({"models": models, **more}, {})


@pytest.mark.parametrize(
    ("engine", "changed", "n_dispatched"),
    [
        # Four steps, of 512 and of 128 tokens; of 8192 where nothing is known.
        ("tiny", {}, 4),
        ("tiny", {"max_num_batched_tokens": 128}, 1),
        ("scripted", {}, 16),
    ],
)
def test_queue_holds_prompts_of_keys_beyond_four_steps(
    engine: str, changed: dict[str, Any], n_dispatched: int
) -> None:
    models = build_models(load_settings({"model": engine, **changed}, {}), SystemClock())
    (model,) = models
    queue = model.queues.generation
    for _ in range(20):
        queue.enqueue(QueueShare("a"), 512)
    assert queue.n_held == 20 - n_dispatched


async def test_pinned_models_load_at_startup_and_others_on_demand(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not GGUF")
    models = build_models(
        settings(MODELS.replace("BROKEN.gguf", f"{tmp_path}/x.gguf")), SystemClock()
    )
    assert [place.state for place in models.slots] == [
        ModelState.LOADED,
        ModelState.UNLOADED,
        ModelState.UNLOADED,
    ]
    transport = httpx2.ASGITransport(build_asgi_app(models))
    await models.start()
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["house", "gpt", "echo", "broken"]
        assert (listed[0]["max_model_len"], listed[0]["dragoman"]["state"]) == (2048, "loaded")
        assert "tools" in listed[0]["dragoman"]["capabilities"]
        assert listed[2]["dragoman"] == {"state": "unloaded", "aliases": [], "capabilities": None}
        assert (await client.get("/v1/models/claude-x")).json()["id"] == "claude-x"
        ask: dict[str, Any] = {
            "messages": [{"role": "user", "content": "[[say Hi!]]"}],
            "max_tokens": 4,
        }
        for name, answered, status in (
            ("claude-x", "house", 200),
            ("echo", "echo", 200),
            ("broken", None, 500),
        ):
            reply = await client.post("/v1/chat/completions", json={"model": name, **ask})
            assert (reply.status_code, reply.json().get("model")) == (status, answered)
        assert (await client.post("/v1/chat/completions", json={"model": "broken", **ask})).headers[
            "retry-after"
        ]
        assert (await client.post("/v1/chat/completions", json=ask)).status_code == 400
        assert (
            await client.post("/v1/embeddings", json={"model": "echo", "input": "hi"})
        ).status_code == 400
        listed = (await client.get("/v1/models")).json()["data"]
        assert [model["dragoman"]["state"] for model in listed[2:]] == ["loaded", "failed"]
    await models.stop()


def test_invalid_model_combination_raises_settings_error() -> None:
    with pytest.raises(SettingsError, match="cannot serve tyni"):
        build_models(settings('{"a": {"model": "tyni", "pinned": true}}'), SystemClock())
    with pytest.raises(SettingsError, match="more than --model-memory-limit"):
        build_models(
            settings('{"a": {"model": "tiny", "memory": 500}}', model_memory_limit="400"),
            SystemClock(),
        )


def test_first_model_name_as_pattern_raises_settings_error() -> None:
    with pytest.raises(SettingsError, match="cannot be a pattern"):
        build_models(Settings(served_model_name=("claude-*",)), SystemClock())


def test_measure_weights_sums_all_split_files(tmp_path: Path) -> None:
    for number, size in ((1, 10), (2, 20)):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(bytes(size))
    assert measure_weights(plan_model(f"{tmp_path}/m-00001-of-00002.gguf")) == 30


def test_measure_weights_counts_only_weight_files(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    (tmp_path / "config.json").write_bytes(b"{}")
    assert (
        measure_weights(plan_model(f"tiny:{tmp_path}")),
        measure_weights(plan_model(str(tmp_path))),
        measure_weights(plan_model("tiny")),
        measure_weights(plan_model("http://a/v1")),
    ) == (
        5,
        5,
        0,
        0,
    )


def test_measure_memory_includes_kv_cache(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    shape = {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    served = Settings().replace(model=f"transformers:{tmp_path}", device="cpu")
    assert (
        measure_memory(plan_model(served.model), served.replace(kv_cache_tokens=100))
        == 5 + 100 * 2 * 3 * 2 * 8 * 4
    )
    assert 5 < measure_memory(plan_model(served.model), served) <= 5 + MAX_TORCH_KV_BYTES
    assert measure_memory(plan_model(served.model), served.replace(device="cuda")) == 5
    entry = settings(
        json.dumps({"a": {"model": f"transformers:{tmp_path}", "device": "cpu"}}),
        model_memory_limit="100",
    )
    with pytest.raises(SettingsError, match="weights and KV cache, more than --model-memory-limit"):
        build_models(entry, SystemClock())


async def test_shutdown_ends_readiness_but_not_liveness() -> None:
    models = build_models(Settings(model="scripted"), SystemClock())
    transport = httpx2.ASGITransport(
        build_asgi_app(models, options=ServingOptions(api_key=("secret",)))
    )
    routes = ("/livez", "/readyz", "/healthz", "/health")
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await models.start()
        for route in routes:
            answer = await client.get(route)
            assert (answer.status_code, answer.content) == (200, b"")
        models.close()
        assert [(await client.get(route)).status_code for route in routes] == [200, 503, 503, 503]
    await models.stop()
