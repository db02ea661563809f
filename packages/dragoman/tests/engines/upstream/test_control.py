"""Administrators pause upstreams, put them to sleep, empty their caches and load their
adapters.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.engines.upstream.relays import VLLM, build_app, build_client, build_engine, direct
from tests.engines.upstream.stub_server import Handle, far_server
from tests.http.wire import serving
from tests.http_transport import FakeTransport
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.engine_control import EngineControl
from dragoman.core.engine_interfaces import EngineInterfaces
from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.engines.upstream import KINDS, Upstream, UpstreamControl, discover
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.lora_adapters import Adapters
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_http import ClientTimeouts

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def build_front(*addresses: str, key: str | None = None) -> Models:
    upstreams = tuple(Upstream(f"{address}/v1", key=key) for address in addresses)
    control = UpstreamControl(upstreams, ClientTimeouts(read=60.0))
    backend = EventBackend(build_engine(upstreams=upstreams))
    adapters = Adapters((), control, is_remote=True)
    interfaces = EngineInterfaces(control=control, cache=control)
    return Models(
        [ServedModel("m", backend, 4096, 1_700_000_000, interfaces=interfaces, adapters=adapters)]
    )


class Loader:
    """The adapters that an engine receives."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}

    async def load_adapter(self, name: str, path: str) -> None:
        self.loaded[name] = path

    async def unload_adapter(self, name: str) -> None:
        del self.loaded[name]


@asynccontextmanager
async def answering(handle: Handle, count: int = 1) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client of a server whose upstreams answer all requests but health checks
    with this.
    """

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return handle(request) if request.method == "POST" else httpx2.Response(200)

    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(far_server(answer)) for _ in range(count)]
        yield await stack.enter_async_context(direct(build_front(*addresses, key="theirs"), VLLM))


async def test_control_routes_pause_sleep_and_reset_upstream() -> None:
    behind = build_models(Settings(served_model_name=("m",), max_model_len=2048), SystemClock())
    [model] = behind
    control: EngineControl | None = model.interfaces.control
    assert control is not None
    await behind.start()
    try:
        async with (
            serving(build_app(behind, VLLM)) as wire,
            direct(build_front(f"http://127.0.0.1:{wire.port}"), VLLM) as client,
        ):
            assert (await client.post("/pause?mode=keep&clear_cache=false")).status_code == 200
            assert control.is_paused
            assert (await client.get("/is_paused")).json() == {"is_paused": True}
            await client.post("/resume")
            assert not control.is_paused
            assert (await client.get("/is_paused")).json() == {"is_paused": False}
            await client.post("/sleep?level=1")
            assert control.sleep_level == 1
            assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
            await client.post("/wake_up")
            assert control.sleep_level == 0
            assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
            assert (await client.post("/abort_requests")).json() == {
                "status": "aborted",
                "aborted": 0,
            }
            assert (await client.post("/reset_prefix_cache")).json() == {"success": True}
            answer = await client.post("/sleep?level=2")
            assert answer.status_code == 400
            assert control.sleep_level == 0
            assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    finally:
        await behind.stop()


async def test_load_lora_adapter_uses_directories_of_upstream(tmp_path: Path) -> None:
    tokenizer = load_tiny_tokenizer()
    loader = Loader()
    engine = ScriptedEngine(Script((ScriptEntry((Say("Hi"),), repeat=True),)), tokenizer=tokenizer)
    adapters = Adapters((), loader)
    behind = Models(
        [ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000, adapters=adapters)]
    )
    options = msgspec.structs.replace(VLLM, lora_dir=str(tmp_path))
    (tmp_path / "poet").mkdir()
    await behind.start()
    try:
        async with (
            serving(build_app(behind, options)) as wire,
            direct(build_front(f"http://127.0.0.1:{wire.port}"), VLLM) as client,
        ):
            loaded = await client.post(
                "/v1/load_lora_adapter", json={"lora_name": "poet", "lora_path": "poet"}
            )
            assert loaded.status_code == 200, loaded.text
            assert loader.loaded == {"poet": str(tmp_path / "poet")}
            again = await client.post(
                "/v1/load_lora_adapter", json={"lora_name": "poet", "lora_path": "poet"}
            )
            assert again.status_code == 400
            outside = await client.post(
                "/v1/load_lora_adapter", json={"lora_name": "thief", "lora_path": "../x"}
            )
            assert (outside.status_code, set(loader.loaded)) == (500, {"poet"}), (
                "an upstream's 403 is not an error of the client"
            )
            names = [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
            assert names == ["m", "poet"]
            unloaded = await client.post("/v1/unload_lora_adapter", json={"lora_name": "poet"})
            assert unloaded.status_code == 200
            assert loader.loaded == {}
            missing = await client.post("/v1/chat/completions", json={"model": "poet", **CHAT})
            assert missing.status_code == 404
    finally:
        await behind.stop()


CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'  # noqa: E501


async def test_request_for_adapter_sends_adapter_name_as_model() -> None:
    bodies: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/chat/completions":
            bodies.append(json.loads(request.content)["model"])
            return httpx2.Response(
                200, content=CHUNK, headers={"content-type": "text/event-stream"}
            )
        return httpx2.Response(200, text="loaded")

    async with answering(answer) as client:
        await client.post(
            "/v1/load_lora_adapter", json={"lora_name": "poet", "lora_path": "/there/poet"}
        )
        for model in ("m", "poet"):
            assert (
                await client.post("/v1/chat/completions", json={**CHAT, "model": model})
            ).status_code == 200
    assert bodies == ["m", "poet"]


async def test_abort_requests_calls_every_upstream_with_api_key() -> None:
    keys: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers.get("authorization"))
        return httpx2.Response(200, json={"status": "aborted", "aborted": 2})

    async with answering(answer, 2) as client:
        answered = await client.post("/abort_requests")
    assert answered.json()["aborted"] == 4
    assert keys == ["Bearer theirs"] * 2


@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        (404, {"detail": "Not Found"}, 404, "VLLM_SERVER_DEV_MODE"),
        (500, {"error": {"message": "secret"}}, 500, "HTTP 500"),
        (403, {"error": {"message": "secret"}}, 500, "rejected this server's request"),
        (400, {"error": {"message": "sleep mode is off"}}, 400, "sleep mode is off"),
    ],
)
async def test_sleep_rejected_by_upstream_keeps_state(
    status: int, body: dict[str, Any], expected: int, words: str
) -> None:
    async with answering(lambda _: httpx2.Response(status, json=body)) as client:
        answer = await client.post("/sleep")
        assert answer.status_code == expected
        assert words in answer.json()["error"]["message"]
        assert "secret" not in answer.text
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}


async def test_pause_unreachable_upstream_returns_503() -> None:
    async with build_client(build_app(build_front("http://127.0.0.1:9"), VLLM)) as client:
        assert (await client.post("/pause")).status_code == 503


async def test_control_routes_require_admin_api_key() -> None:
    options = msgspec.structs.replace(VLLM, api_key=("user",), admin_api_key=("admin",))
    async with build_client(build_app(build_front("http://127.0.0.1:9"), options)) as client:
        for path in ("/pause", "/sleep", "/reset_prefix_cache", "/v1/load_lora_adapter"):
            assert (
                await client.post(path, json={}, headers={"authorization": "Bearer user"})
            ).status_code == 403


def test_discover_returns_adapters_of_upstream() -> None:
    cards = [{"id": "m", "owned_by": "vllm"}, {"id": "poet", "owned_by": "vllm", "parent": "m"}]

    def answer(request: httpx2.Request) -> httpx2.Response:
        return (
            httpx2.Response(200, json={"data": cards})
            if request.method == "GET"
            else httpx2.Response(404)
        )

    transport = FakeTransport(answer)
    assert discover(Upstream("http://a/v1"), None, transport=transport).adapters == ("poet",)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tei"])
def test_control_exists_only_for_vllm_and_dragoman_kinds(kind: str) -> None:
    settings = Settings().replace(model="http://a/v1", upstream_kind=kind, upstream_model="m")  # pyright: ignore[reportArgumentType]
    [model] = build_models(settings, SystemClock())
    assert (model.interfaces.control is not None) == (kind in ("vllm", "dragoman"))
