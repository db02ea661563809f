"""A server with a model from the hub: it listens during the download, and later starts
without the hub.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.hub.processes import serve as serve_in_process
from tests.hub.processes import start
from tests.hub.shapes import ENCODER, LORA, SHARDED, SINGLE
from tests.hub.stub import HubStub

from dragoman.launch import build_models, build_serving_options
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError, load_settings

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "max_tokens": 12,
    "temperature": 0,
}


@pytest.fixture(autouse=True)
def core_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(_: str) -> None: ...

    monkeypatch.setattr("dragoman.launch.architecture_check.find_spec", find_spec)
    monkeypatch.setattr("dragoman.launch.engine_choice.find_spec", find_spec)


@asynccontextmanager
async def serve(settings: Settings) -> AsyncGenerator[tuple[httpx2.AsyncClient, Models]]:
    models = build_models(settings, SystemClock())
    transport = httpx2.ASGITransport(
        build_asgi_app(models, options=build_serving_options(settings))
    )
    await models.start()
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, models
    finally:
        await models.stop()


async def wait_until_loaded(models: Models) -> None:
    await models.begin_load(models.slots[0])


@pytest.mark.usefixtures("cache")
async def test_server_answers_during_model_download(hub: HubStub):
    hub.stall_after = 5_000
    async with serve(Settings(model=SINGLE)) as (client, models):
        assert await asyncio.to_thread(hub.stalled.wait, 60)
        listed = (await client.get("/v1/models")).json()["data"][0]
        assert (listed["id"], listed["dragoman"]["state"]) == (SINGLE, "downloading")
        assert listed["dragoman"]["revision"] == hub.repositories[SINGLE].commit
        progress = listed["dragoman"]["progress"]
        assert 0 <= progress["completed"] < progress["total"]
        assert progress["total"] > len(hub.repositories[SINGLE].files["model.safetensors"])
        rejected = await client.post("/v1/chat/completions", json={"model": SINGLE, **ASK})
        assert (rejected.status_code, rejected.headers["retry-after"]) == (503, "30")
        assert f"The model `{SINGLE}` is being downloaded (" in rejected.json()["error"]["message"]
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "the model is downloading")
        assert (await client.get("/livez")).status_code == 200
        hub.released.set()
        await wait_until_loaded(models)
        assert (await client.get("/readyz")).status_code == 200
        reply = (await client.post("/v1/chat/completions", json={"model": SINGLE, **ASK})).json()
        assert (reply["model"], reply["choices"][0]["message"]["content"]) == (
            SINGLE,
            "The capital of Japan is Tokyo.",
        )
        # After an unload the next request loads it, and waits.
        await models.unload(models.slots[0])
        assert models.slots[0].status == "unloaded"
        assert (
            await client.post("/v1/chat/completions", json={"model": SINGLE, **ASK})
        ).status_code == 200


@pytest.mark.usefixtures("cache")
async def test_models_list_contains_model_metadata(hub: HubStub):
    async with serve(Settings(model=SHARDED, max_model_len=512)) as (client, models):
        await wait_until_loaded(models)
        listed = (await client.get("/v1/models")).json()["data"][0]
    names = (
        "context_length",
        "context_window",
        "max_model_len",
        "max_input_tokens",
        "max_output_tokens",
    )
    assert {listed[name] for name in names} == {512}
    weights = sum(
        len(data)
        for path, data in hub.repositories[SHARDED].files.items()
        if path.endswith(".safetensors")
    )
    meta = {
        "n_ctx": 512,
        "n_ctx_train": 32768,
        "n_vocab": 2048,
        "n_params": 1967808,
        "size": weights,
    }
    assert {name: listed["meta"][name] for name in meta} == meta
    assert listed["architecture"] == {
        "input_modalities": ["text"],
        "output_modalities": ["text", "embeddings"],
    }
    own = listed["dragoman"]
    assert (own["engine"], own["revision"]) == ("tiny", hub.repositories[SHARDED].commit)
    assert (own["size"], own["parameters"], own["state"]) == (weights, 1967808, "loaded")


@pytest.mark.usefixtures("cache")
async def test_encoder_from_hub_serves_embeddings():
    async with serve(Settings(model=ENCODER)) as (client, models):
        await wait_until_loaded(models)
        answer = await client.post(
            "/v1/embeddings", json={"model": ENCODER, "input": "the cat sat"}
        )
        assert len(answer.json()["data"][0]["embedding"]) == 32
        listed = (await client.get("/v1/models")).json()["data"][0]
        assert listed["architecture"]["output_modalities"] == ["embeddings"]
        assert "max_output_tokens" not in listed


@pytest.mark.usefixtures("cache")
async def test_settings_file_hub_models_load_on_demand(hub: HubStub):
    entries = '{"a": "tiny", "b": {"model": "org/single", "ttl": 60}}'
    async with serve(load_settings({"models": entries}, {})) as (client, models):
        assert hub.count("GET /cdn/") == 0
        rejected = await client.post("/v1/chat/completions", json={"model": "b", **ASK})
        assert (rejected.status_code, rejected.headers["retry-after"]) == (503, "30")
        await models.begin_load(models.slots[1])
        answer = await client.post("/v1/chat/completions", json={"model": "b", **ASK})
        assert answer.json()["model"] == "b"


def test_settings_file_absent_model_raises_error_at_start(cache: Path):
    with pytest.raises(
        SettingsError, match="models: b: cannot serve org/absent: org/absent does not exist at "
    ):
        build_models(
            load_settings({"models": '{"a": "tiny", "b": "org/absent"}'}, {}), SystemClock()
        )


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (
            "Qwen3ForCausalLM",
            r"embeds texts, which needs an engine that is not installed: pip install "
            r"'dragoman\[transformers\]'",
        ),
        ("FancyModel", "architecture 'FancyModel' is not supported by the encoder engine"),
    ],
)
def test_unloadable_architecture_is_rejected_before_download(
    hub: HubStub, cache: Path, architecture: str, message: str
):
    files = hub.repositories[ENCODER].files
    files["config.json"] = files["config.json"].replace(b"BertModel", architecture.encode())
    with pytest.raises(SettingsError, match=message):
        build_models(Settings(model=ENCODER), SystemClock())
    assert hub.count("GET /cdn/") == 0


def test_missing_extra_is_reported_before_download(hub: HubStub, cache: Path):
    with pytest.raises(
        SettingsError,
        match=r"needs the engine llamacpp, which is not installed: pip install 'dragoman\[lla",
    ):
        build_models(Settings(model="org/small-GGUF"), SystemClock())
    assert hub.count("GET /cdn/") == 0


@pytest.mark.usefixtures("cache")
async def test_simulator_uses_tokenizer_and_adapters_from_hub(hub: HubStub):
    adapters = (f"small={LORA}",)
    settings = Settings(model="sim", lora_modules=adapters, api_profile="vllm").replace(
        tokenizer=SINGLE
    )
    async with serve(settings) as (client, _):
        listed = (await client.get("/v1/models")).json()["data"]
        assert (listed[1]["id"], Path(listed[1]["root"]).name) == (
            "small",
            hub.repositories[LORA].commit,
        )
        body = {"prompt": "hello", "add_special_tokens": False}
        assert (await client.post("/tokenize", json=body)).json()["count"] > 0
    assert hub.count(r"GET /org/single/resolve/.*\.safetensors") == 0
    hub.requests.clear()
    build_models(settings, SystemClock())
    assert hub.requests == []


def test_server_process_downloads_model_and_restarts_offline(hub: HubStub, tmp_path: Path):
    model = f"tiny:{SINGLE}"
    logs: list[str] = []
    requests: list[int] = []
    for _ in range(2):
        with serve_in_process(hub, tmp_path, model) as (client, logged):
            reply = client.post("/v1/chat/completions", json=ASK).json()
        logs.append("\n".join(logged))
        assert reply["choices"][0]["message"]["content"] == "The capital of Japan is Tokyo."
        requests.append(len(hub.requests))
    assert requests[0] == requests[1] > 0
    commit = hub.repositories[SINGLE].commit
    assert f"of revision main (commit {commit})" in logs[0]
    assert "1,967,808 parameters" in logs[1]
    assert f"loading commit {commit} with the engine tiny: MODEL names it" in logs[1]
    with start(hub, tmp_path, "models") as process:
        table = process.communicate(timeout=60)[0]
    assert re.search(
        rf"org/single +3\.9 MB +tiny +32768 +\d{{4}}-\d\d-\d\d \d\d:\d\d +main \({commit[:12]}\)",
        table,
    )
    with start(hub, tmp_path, "rm", SINGLE) as process:
        removed = process.communicate(timeout=60)[0]
    assert re.fullmatch(r"Removed org/single: \d\.\d MB freed\n", removed)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_unloadable_model_exits_with_one_line_error(hub: HubStub, tmp_path: Path):
    hub.repositories[SINGLE].damaged = frozenset({"model.safetensors"})
    with start(
        hub, tmp_path, "serve", f"tiny:{SINGLE}", "--port", "0", "--store", "none"
    ) as process:
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert (
        "Error: cannot serve org/single: model.safetensors of org/single arrived damaged" in errors
    )
    assert "Traceback" not in errors
