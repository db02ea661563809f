"""Adapters that admins load at run time: allowed directories, on an engine that opens
their files.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
import msgspec
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.errors import RequestError
from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.lora_adapters import Adapters
from dragoman.pipeline.model_lifecycle import ModelSpec
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.serving_options import ServingOptions


class Loader:
    """An engine that opens the files of adapters."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    async def load_adapter(self, name: str, path: str) -> None:
        if not (Path(path) / "adapter_config.json").exists():
            raise RequestError(f"The adapter in {path!r} cannot be read.", param="lora_path")
        self.loaded.append(path)

    async def unload_adapter(self, name: str) -> None: ...


def client(loader: Loader, lora_dir: Path | None) -> httpx2.AsyncClient:
    tokenizer = load_tiny_tokenizer()
    backend = EventBackend(
        ScriptedEngine(Script((ScriptEntry((Say("Hi"),)),)), tokenizer=tokenizer), tokenizer
    )
    model = ServedModel("m", backend, 4096, 1_700_000_000, adapters=Adapters((), loader))
    options = ServingOptions(lora_dir=None if lora_dir is None else str(lora_dir))
    transport = httpx2.ASGITransport(build_asgi_app(Models([model]), options=options))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")


def build_adapter(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_bytes(msgspec.json.encode({}))
    return path


async def load(http: httpx2.AsyncClient, path: object) -> httpx2.Response:
    return await http.post(
        "/v1/load_lora_adapter", json={"lora_name": f"n{path}"[:40], "lora_path": str(path)}
    )


async def test_adapter_load_outside_lora_dir_rejected(tmp_path: Path):
    root = tmp_path / "adapters"
    inside = tmp_path / "adapters" / "sql"
    outside = tmp_path / "secret"
    for path in (inside, outside):
        build_adapter(path)
    (root / "link").symlink_to(outside)
    loader = Loader()
    async with client(loader, root) as http:
        assert (await load(http, inside)).status_code == 200
        assert (await load(http, "sql")).status_code == 200
        for wrong in (outside, "../secret", "link", "/etc", "/nowhere", "sql/../../secret"):
            rejected = await load(http, wrong)
            assert rejected.status_code == 403, wrong
            assert str(tmp_path) not in rejected.text
        missing = await load(http, "nothing")
        assert (missing.status_code, missing.json()["error"]["param"]) == (400, "lora_path")
    assert loader.loaded == [str(inside)] * 2


async def test_every_model_list_contains_loaded_adapter(tmp_path: Path):
    build_adapter(tmp_path / "sql")
    async with client(Loader(), tmp_path) as http:
        assert (await load(http, "sql")).status_code == 200
        openai = (await http.get("/v1/models")).json()["data"]
        google = (await http.get("/v1beta/models")).json()["models"]
        ollama = (await http.get("/api/tags")).json()["models"]
    assert [model["id"] for model in openai] == ["m", "nsql"]
    assert [model["name"] for model in google] == ["models/m", "models/nsql"]
    assert [model["name"].partition(":")[0] for model in ollama] == ["m", "nsql"]


async def test_adapter_load_unusable_path_returns_400(tmp_path: Path):
    async with client(Loader(), tmp_path) as http:
        for path in ("a" * 5000, "a/" * 3000, "a\0b"):
            body = {"lora_name": "a", "lora_path": path}
            response = await http.post("/v1/load_lora_adapter", json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "lora_path")


async def test_adapter_load_without_lora_dir_returns_403(tmp_path: Path):
    loader = Loader()
    async with client(loader, None) as http:
        rejected = await load(http, build_adapter(tmp_path / "sql"))
    assert (rejected.status_code, "--lora-dir" in rejected.text) == (403, True)
    assert loader.loaded == []


async def test_adapter_load_with_unloaded_model_returns_503():
    def build() -> ServedModel:
        raise AssertionError("the model is not loaded for an adapter")

    models = Models([ModelSpec("m", build, 0, ttl=60.0, memory=10)])
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(build_asgi_app(models)), base_url="http://localhost"
    ) as http:
        rejected = await load(http, "sql")
    assert (rejected.status_code, "not loaded" in rejected.text) == (503, True)
