"""The routes of administrators: models are listed with their state, loaded, unloaded and downloaded, with progress."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dragoman.core.errors import EngineError, NotFound, RequestError
from dragoman.launch import build_models
from dragoman.launch.puller import HubPuller
from dragoman.serving.app import create_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.service import ServingOptions
from dragoman.settings import Settings, load_settings
from tests.hub.shapes import GGUF, SINGLE
from tests.hub.stub import HubStub

ENTRIES = '{"a": {"model": "tiny", "pinned": true}, "b": {"model": "tiny:org/single"}}'


@asynccontextmanager
async def serve() -> AsyncGenerator[httpx2.AsyncClient]:
    settings = load_settings({"models": ENTRIES}, {})
    models = build_models(settings, SystemClock())
    options = ServingOptions(api_keys=("user",), admin_keys=("admin",))
    transport = httpx2.ASGITransport(create_app(models, options=options, puller=HubPuller(settings)))
    await models.start()
    try:
        headers = {"authorization": "Bearer admin"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            yield client
    finally:
        await models.stop()


def read_events(body: str) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in body.split("\n\n") if event.startswith("data: ")]


@pytest.mark.usefixtures("cache")
async def test_a_model_is_loaded_with_progress_and_unloaded(hub: HubStub):
    async with serve() as client:
        listed = (await client.get("/models")).json()["data"]
        assert [(model["id"], model["status"]["value"]) for model in listed] == [("a", "loaded"), ("b", "unloaded")]
        events = read_events((await client.post("/models/load", json={"model": "b", "stream": True})).text)
        assert {(event["model"], event["event"]) for event in events} == {("b", "status_change")}
        assert events[0]["data"]["status"] == "downloading"
        assert events[-1]["data"] == {"status": "loaded"}
        loaded = (await client.get("/models")).json()["data"][1]
        assert loaded["status"] == {"value": "loaded"}
        assert loaded["meta"]["n_params"] == 1967808
        assert (await client.post("/models/unload", json={"model": "b"})).json() == {"success": True}
        assert (await client.get("/models")).json()["data"][1]["status"] == {"value": "unloaded"}
        assert (await client.post("/models/unload", json={"model": "b"})).status_code == 400
        refused = await client.post("/models/unload", json={"model": "a"})
        assert refused.json()["error"]["message"] == "The model `a` is pinned: it stays loaded."
        assert (await client.post("/models/load", json={"model": "b"})).json() == {"success": True}


@pytest.mark.usefixtures("cache")
async def test_only_administrators_change_models():
    async with serve() as client:
        client.headers["authorization"] = "Bearer user"
        for path in ("/models/load", "/models/unload", "/models/pull"):
            assert (await client.post(path, json={"model": "b"})).status_code == 403
        assert (await client.get("/models")).status_code == 200


@pytest.mark.usefixtures("cache")
async def test_a_model_is_pulled_with_progress(hub: HubStub):
    async with serve() as client:
        events = read_events((await client.post("/models/pull", json={"model": GGUF, "stream": True})).text)
        assert events[0]["data"] == {"status": "pulling manifest"}
        file = events[-2]["data"]
        assert (file["completed"], file["total"]) == (300_004, 300_004)
        assert file["digest"].startswith("sha256:")
        assert events[-1]["data"] == {"status": "success"}
        hub.requests.clear()
        assert (await client.post("/models/pull", json={"model": f"hf.co/{GGUF}:latest"})).json() == {"success": True}
        assert hub.count("GET /cdn/") == 0
        failed = await client.post("/models/pull", json={"model": "org/absent"})
        assert failed.status_code == 400
        assert "org/absent does not exist at " in failed.json()["error"]["message"]


@pytest.mark.usefixtures("cache")
async def test_a_puller_reports_errors_and_can_be_closed(hub: HubStub):
    puller = HubPuller(Settings())
    with pytest.raises(NotFound, match="is not a model of the hub"):
        _ = [progress async for progress in puller.pull("llama3")]
    with pytest.raises(RequestError, match="does not exist at"):
        _ = [progress async for progress in puller.pull("org/absent")]
    hub.repositories[GGUF].damaged = frozenset({"small-Q4_K_M.gguf"})
    with pytest.raises(EngineError, match="arrived damaged"):
        _ = [progress async for progress in puller.pull(GGUF)]
    hub.stall_after = 5_000
    events = puller.pull(SINGLE)
    async for progress in events:
        if progress.completed is not None:
            break
    hub.released.set()
    await events.aclose()
