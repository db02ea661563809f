"""Admin routes: models are listed with their state, loaded, unloaded and downloaded,
with progress.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import ASGIApp, Message, Scope
from tests.hub.processes import start
from tests.hub.shapes import GGUF, SINGLE
from tests.hub.stub import HubStub
from tests.serving.harness import scope

from dragoman.core.errors import EngineError, NotFound, RequestError
from dragoman.launch import build_models
from dragoman.launch.hub_models import HubPuller
from dragoman.pipeline.model_lifecycle import ModelState
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.model_downloads import ModelDownloads
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings, load_settings

ENTRIES = '{"a": {"model": "tiny", "pinned": true}, "b": {"model": "tiny:org/single"}}'


class AdminClient(httpx2.AsyncClient):
    """A client of an application with an administrator's key."""

    def __init__(self, app: ASGIApp) -> None:
        headers = {"authorization": "Bearer admin"}
        super().__init__(
            transport=httpx2.ASGITransport(app), base_url="http://localhost", headers=headers
        )
        self.app = app


@asynccontextmanager
async def serve() -> AsyncGenerator[AdminClient]:
    settings = load_settings({"models": ENTRIES}, {})
    models = build_models(settings, SystemClock())
    options = ServingOptions(api_key=("user",), admin_api_key=("admin",))
    app = build_asgi_app(models, options=options, puller=HubPuller(settings))
    await models.start()
    try:
        async with AdminClient(app) as client:
            yield client
    finally:
        await models.stop()


def read_events(body: str) -> list[dict[str, Any]]:
    return [
        json.loads(event.removeprefix("data: "))
        for event in body.split("\n\n")
        if event.startswith("data: ")
    ]


@pytest.mark.usefixtures("cache")
async def test_models_load_reports_progress_and_unload_succeeds(hub: HubStub):
    async with serve() as client:
        listed = (await client.get("/models")).json()["data"]
        assert [(model["id"], model["status"]["value"]) for model in listed] == [
            ("a", "loaded"),
            ("b", "unloaded"),
        ]
        events = read_events(
            (await client.post("/models/load", json={"model": "b", "stream": True})).text
        )
        assert {(event["model"], event["event"]) for event in events} == {("b", "status_change")}
        assert events[0]["data"]["status"] == "downloading"
        assert set(events[0]["data"]["progress"]) == {"b"}
        assert set(events[0]["data"]["progress"]["b"]) == {"done", "total"}
        assert events[-1]["data"] == {"status": "loaded"}
        loaded = (await client.get("/models")).json()["data"][1]
        assert loaded["status"] == {"value": "loaded"}
        assert loaded["meta"]["n_params"] == 1967808
        assert (await client.post("/models/unload", json={"model": "b"})).json() == {
            "success": True
        }
        assert (await client.get("/models")).json()["data"][1]["status"] == {"value": "unloaded"}
        assert (await client.post("/models/unload", json={"model": "b"})).status_code == 400
        rejected = await client.post("/models/unload", json={"model": "a"})
        assert rejected.json()["error"]["message"] == "The model `a` is pinned: it stays loaded."
        assert (await client.post("/models/load", json={"model": "b"})).json() == {"success": True}


async def test_models_load_during_unload_reloads_model():
    async with watch() as (models, connection):
        slot = models.slots[1]
        await models.begin_load(slot)
        with slot:
            unload = asyncio.create_task(slot.drain_and_unload())
            await asyncio.sleep(0)
            assert slot.state is ModelState.DRAINING
            async with AdminClient(connection.app) as client:
                assert (await client.post("/models/load", json={"model": "b"})).json() == {
                    "success": True
                }
            assert slot.is_loading
        await unload


async def test_tokenize_request_marks_model_as_busy():
    async with watch() as (models, connection), AdminClient(connection.app) as client:
        slot = models.slots[1]
        await models.begin_load(slot)
        request = asyncio.create_task(
            client.post("/tokenize", json={"model": "b", "prompt": "the cat " * 20_000})
        )
        while not request.done() and not slot.is_busy:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        assert not request.done()
        assert len((await request).json()["tokens"]) > 20_000
        assert not slot.is_busy


async def test_models_load_of_failed_model_returns_503():
    async with watch() as (models, connection), AdminClient(connection.app) as client:
        models.slots[1].state = ModelState.FAILED
        answer = await client.post("/models/load", json={"model": "b"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.usefixtures("cache")
async def test_models_admin_routes_with_user_key_return_403():
    async with serve() as client:
        client.headers["authorization"] = "Bearer user"
        for path in ("/models/load", "/models/unload", "/models/pull"):
            assert (await client.post(path, json={"model": "b"})).status_code == 403
        assert (await client.get("/models")).status_code == 200


@pytest.mark.usefixtures("cache")
async def test_models_pull_streams_progress(hub: HubStub):
    async with serve() as client:
        events = read_events(
            (await client.post("/models/pull", json={"model": GGUF, "stream": True})).text
        )
        assert events[0]["data"] == {"status": "pulling manifest"}
        file = events[-2]["data"]
        assert (file["completed"], file["total"]) == (300_004, 300_004)
        assert file["digest"].startswith("sha256:")
        assert events[-1]["data"] == {"status": "success"}
        hub.requests.clear()
        assert (
            await client.post("/models/pull", json={"model": f"hf.co/{GGUF}:latest"})
        ).json() == {"success": True}
        assert hub.count("GET /cdn/") == 0
        failed = await client.post("/models/pull", json={"model": "org/absent"})
        assert failed.status_code == 400
        assert "org/absent does not exist at " in failed.json()["error"]["message"]


class Connection:
    """One client of `/models/sse`, as ASGI has it."""

    def __init__(self, app: ASGIApp, key: str = "user") -> None:
        self.app = app
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.inbox.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.body = b""
        self.has_ended = False
        self._has_news = asyncio.Event()
        self.headers: dict[bytes, bytes] = {}
        self.task = asyncio.create_task(
            self._run(app, scope("/models/sse", {"authorization": f"Bearer {key}"}, "GET"))
        )

    async def _run(self, app: ASGIApp, request: Scope) -> None:
        await app(request, self.inbox.get, self._send)

    async def _send(self, message: Message) -> None:
        self.headers |= dict(message.get("headers", ()))
        self.body += message.get("body", b"")
        self.has_ended = message["type"] == "http.response.body" and not message.get(
            "more_body", False
        )
        self._has_news.set()

    async def read_until(self, is_there: Callable[[], object]) -> None:
        while not is_there():
            self._has_news.clear()
            await self._has_news.wait()

    async def read_states(self, count: int) -> list[tuple[str, str]]:
        """Return the first states when they have arrived. Draining may end too soon to
        be seen.
        """
        while True:
            events = read_events(self.body.decode())
            assert {event["event"] for event in events} <= {"status_change"}
            states = [(event["model"], event["data"]["status"]) for event in events]
            seen = [state for state in states if state[1] != "draining"]
            if len(seen) >= count:
                return seen
            self._has_news.clear()
            await self._has_news.wait()


@asynccontextmanager
async def watch_downloads(client: AdminClient) -> AsyncGenerator[Connection]:
    """Open an admin's stream of changes, after the states of all models have arrived."""
    connection = Connection(client.app, "admin")
    await connection.read_states(2)
    yield connection
    connection.inbox.put_nowait({"type": "http.disconnect"})
    await connection.task


def find_reports(connection: Connection, event: str) -> list[dict[str, Any]]:
    return [found for found in read_events(connection.body.decode()) if found["event"] == event]


@pytest.mark.usefixtures("cache")
async def test_models_post_downloads_in_background_like_llama_cpp(hub: HubStub):
    hub.stall_after = 5_000
    async with serve() as client, watch_downloads(client) as connection:
        assert (await client.post("/models", json={"model": GGUF})).json() == {"success": True}
        listed = (await client.get("/models")).json()["data"][-1]
        assert (listed["id"], listed["status"]["value"]) == (GGUF, "downloading")
        [(digest, progress)] = listed["status"]["progress"].items()
        assert digest.startswith("sha256:")
        assert (progress["done"] < progress["total"], progress["total"]) == (True, 300_004)
        assert (await client.post("/models", json={"model": GGUF})).json() == {"success": True}
        hub.released.set()
        await connection.read_until(lambda: find_reports(connection, "download_finished"))
        assert find_reports(connection, "download_finished") == [
            {"model": GGUF, "event": "download_finished", "data": {}}
        ]
        assert all(
            set(report["data"]["progress"]) == {digest}
            for report in find_reports(connection, "download_progress")
        )
        assert hub.count("GET /cdn/") == 1
        assert [model["id"] for model in (await client.get("/models")).json()["data"]] == ["a", "b"]
        # Nothing is left to download.
        assert (await client.post("/models", json={"model": GGUF})).json() == {"success": True}
        assert hub.count("GET /cdn/") == 1


@pytest.mark.usefixtures("cache")
async def test_background_download_reports_cancellation_and_failure(
    hub: HubStub, caplog: pytest.LogCaptureFixture
):
    hub.stall_after = 5_000
    hub.trickles = True
    async with serve() as client, watch_downloads(client) as connection:
        await client.post("/models", json={"model": GGUF})
        unloaded = await client.post("/models/unload", json={"model": GGUF})
        assert unloaded.json() == {"success": True}
        hub.released.set()
        await connection.read_until(lambda: find_reports(connection, "download_failed"))
        [failed] = find_reports(connection, "download_failed")
        assert (failed["model"], failed["data"]["error"]["message"]) == (
            GGUF,
            "The download was cancelled.",
        )
        hub.stall_after = None
        hub.repositories[GGUF].damaged = frozenset({"small-Q4_K_M.gguf"})
        await client.post("/models", json={"model": GGUF})
        await connection.read_until(lambda: len(find_reports(connection, "download_failed")) == 2)
        assert (
            "arrived damaged"
            in find_reports(connection, "download_failed")[1]["data"]["error"]["message"]
        )
    assert f"{GGUF} is not downloaded: The download was cancelled." in caplog.messages


@pytest.mark.usefixtures("cache")
async def test_background_download_ends_on_server_shutdown(hub: HubStub):
    hub.stall_after = 5_000
    downloads = ModelDownloads(HubPuller(Settings()))
    await downloads.open()
    await downloads.start(GGUF)
    assert list(downloads.running) == [GGUF]
    hub.released.set()
    await downloads.close()
    assert not downloads.running


@pytest.mark.usefixtures("cache")
async def test_models_post_and_delete_reject_invalid_requests():
    async with serve() as client:
        absent = await client.post("/models", json={"model": "org/absent"})
        assert (absent.status_code, absent.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
        assert "org/absent does not exist at " in absent.json()["error"]["message"]
        assert (await client.post("/models", json={"model": "llama3"})).status_code == 404
        streamed = await client.post("/models", json={"model": GGUF, "stream": True})
        assert streamed.json()["error"]["message"].startswith("POST /models sends no stream")
        deleted = await client.delete("/models", params={"model": "b"})
        assert (deleted.status_code, "`dragoman rm MODEL`" in deleted.text) == (400, True)
        client.headers["authorization"] = "Bearer user"
        assert (await client.post("/models", json={"model": GGUF})).status_code == 403
        assert len((await client.get("/models")).json()["data"]) == 2


async def test_models_post_without_downloads_returns_404():
    models = build_models(Settings(model="scripted"), SystemClock())
    async with AdminClient(build_asgi_app(models)) as client:
        rejected = await client.post("/models", json={"model": GGUF})
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (
            404,
            "unsupported_endpoint",
        )


@pytest.mark.usefixtures("cache")
async def test_hub_puller_reports_errors_and_can_be_closed(hub: HubStub):
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


@asynccontextmanager
async def watch() -> AsyncGenerator[tuple[Models, Connection]]:
    entries = '{"a": "tiny", "b": {"model": "tiny", "ttl": 600}}'
    models = build_models(load_settings({"models": entries}, {}), SystemClock())
    app = build_asgi_app(
        models, options=ServingOptions(api_key=("user",), admin_api_key=("admin",))
    )
    await models.start()
    try:
        yield models, Connection(app)
    finally:
        await models.stop()


async def test_models_sse_streams_changes_until_client_disconnects():
    async with watch() as (models, connection):
        seen = [("a", "unloaded"), ("b", "unloaded")]
        assert await connection.read_states(2) == seen
        assert connection.headers[b"content-type"].startswith(b"text/event-stream")
        slot = models.slots[1]
        await models.begin_load(slot)
        seen += [("b", "loading"), ("b", "loaded")]
        assert await connection.read_states(4) == seen
        await models.unload(slot)
        seen.append(("b", "unloaded"))
        assert await connection.read_states(5) == seen
        assert not connection.has_ended
        connection.inbox.put_nowait({"type": "http.disconnect"})
        await connection.task
        assert not connection.has_ended


async def test_models_sse_ends_on_server_shutdown():
    async with watch() as (models, connection):
        await connection.read_states(2)
        models.close()
        await connection.task
        assert connection.has_ended


def test_models_sse_does_not_delay_shutdown(hub: HubStub, tmp_path: Path):
    options = ("--port", "0", "--store", "none", "--shutdown-timeout", "600")
    with start(hub, tmp_path, "serve", "scripted", *options) as process:
        assert process.stdout is not None
        url = process.stdout.readline().partition(" on ")[2].split()[0]
        with httpx2.stream("GET", f"{url}/models/sse", timeout=60) as response:
            lines = response.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["data"] == {"status": "loaded"}
            process.terminate()
            assert "".join(lines) == ""
        process.communicate(timeout=60)
    assert process.returncode == 0
