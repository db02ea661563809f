"""Engines and stores that are not part of this package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.engines.scripted import ScriptedEngine
from dragoman.launch import build_greeting, build_models
from dragoman.launch.store_builder import build_store
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError
from dragoman.store import MemoryStore

MODULE = """
from dragoman import BaseTokenEngine
from dragoman.core.errors import EngineError
from dragoman.engines import tiny
from dragoman.engines.scripted import ScriptedEngine
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import ServedModel
from dragoman.prompts.hf_tokenizer import load_tokenizer
from dragoman.store import MemoryStore

calls = []

def create(argument, settings):
    calls.append((argument, settings.max_model_len))
    return ScriptedEngine(tokenizer=load_tokenizer(tiny.find_bundled_model()))

def whole(argument, settings):
    return ServedModel("own", EventBackend(create(argument, settings)), 7, 0)

def wrong(argument, settings):
    return object()

def failing(argument, settings):
    raise EngineError("no licence")

def boom(argument, settings):
    return {}["boom"]

class Limited(ScriptedEngine):
    max_model_len = 4096

def limited(argument, settings):
    return Limited(tokenizer=load_tokenizer(tiny.find_bundled_model()))

class Fixed(BaseTokenEngine):
    async def generate(self, request):
        for token in (5, 6, 7):
            yield token

def tokens(argument, settings):
    return Fixed(argument or tiny.find_bundled_model(), max_model_len=512)

def bare(argument, settings):
    engine = tokens(argument, settings)
    del engine.tokenizer
    return engine

def one_argument(argument):
    return create(argument, None)

async def awaited(argument, settings):
    return create(argument, settings)

def uncalled(argument, settings):
    return Limited

constant = 7

def store(argument, bounds):
    return MemoryStore(bounds)
"""
ENTRIES = """
[dragoman.engines]
acme = acme_engine:create
fixed = acme_engine:tokens

[dragoman.stores]
acme = acme_engine:store
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a third-party package."""
    (tmp_path / "acme_engine.py").write_text(MODULE)
    info = tmp_path / "acme_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))  # pyright: ignore[reportUnknownMemberType]
    monkeypatch.delitem(sys.modules, "acme_engine", raising=False)


def build(model: str, **more: object) -> ServedModel:
    (served,) = build_models(Settings(model=model, **more), SystemClock())  # pyright: ignore[reportArgumentType]
    return served


def test_plugin_module_factory_builds_engine() -> None:
    model = build("python:acme_engine:create:an argument", max_model_len=99)
    assert isinstance(model.backend.engine, ScriptedEngine)
    assert (model.name, model.max_model_len) == ("acme_engine", 99)
    assert sys.modules["acme_engine"].calls == [("an argument", 99)]


@pytest.mark.parametrize(("model", "argument"), [("acme", ""), ("acme:some:where", "some:where")])
def test_plugin_entry_point_name_builds_engine(model: str, argument: str) -> None:
    assert build(model, served_model_name=("a", "b")).aliases == ("b",)
    assert sys.modules["acme_engine"].calls == [(argument, None)]


def test_plugin_factory_may_return_served_model() -> None:
    assert build("python:acme_engine:whole").name == "own"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("python:nothing_here:create", "nothing_here cannot be imported"),
        ("python:acme_engine:nothing", "acme_engine has no nothing"),
        ("python:acme_engine", "python:MODULE:FACTORY"),
        (
            "python:acme_engine:wrong",
            "returned an object of type object; it must be an Engine, a TokenEngine with a",
        ),
        ("python:acme_engine:uncalled", "returned the class Limited instead of an instance"),
        ("python:acme_engine:bare", "Fixed lacks `tokenizer`"),
        ("fixed:/nowhere", "`tokenizer` must be a directory with a tokenizer.json, not /nowhere"),
        (
            "python:acme_engine:awaited",
            "the factory is a coroutine function; a factory must be a function that takes",
        ),
        (
            "python:acme_engine:constant",
            "the factory is an object of type int; a factory must be a function that takes",
        ),
        (
            "python:acme_engine:one_argument",
            r"one_argument\(argument\) cannot be called: too many positional arguments; a factory "
            r"must be a function "
            r"that takes \(argument: str, settings: dragoman.Settings\)",
        ),
        ("python:acme_engine:failing", "no licence"),
        ("python:acme_engine:boom", "the factory raised KeyError: 'boom'"),
        ("hose", "unknown engine or model `hose`"),
    ],
)
def test_plugin_invalid_factory_raises_settings_error(model: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        build(model)


async def test_plugin_context_length_is_taken_from_engine() -> None:
    models = build_models(Settings(model="python:acme_engine:limited"), SystemClock())
    (served,) = models
    assert served.max_model_len == 4096
    assert "(context 4096 tokens)" in build_greeting(Settings(), models, 8000)[0]
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] == 4096


def test_plugin_context_length_can_be_reduced_but_not_exceeded() -> None:
    assert build("python:acme_engine:limited", max_model_len=99).max_model_len == 99
    with pytest.raises(
        SettingsError,
        match="--max-model-len 4097 exceeds the engine's context length of 4096 tokens",
    ):
        build("python:acme_engine:limited", max_model_len=4097)


def test_plugin_entry_point_store_is_built() -> None:
    assert isinstance(build_store(Settings(store="acme:anything"), {}), MemoryStore)
    with pytest.raises(SettingsError, match="store: must be"):
        build_store(Settings(store="nobodys"), {})


async def test_plugin_token_engine_with_tokenizer_is_served() -> None:
    models = build_models(Settings(model="fixed"), SystemClock())
    app = build_asgi_app(models)
    (served,) = models
    assert (served.name, served.max_model_len) == ("fixed", 512)
    async with (
        app.lifespan(),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        reply = await client.post(
            "/v1/completions", json={"prompt": "a", "n": 2, "return_token_ids": True}
        )
        assert [choice["token_ids"] for choice in reply.json()["choices"]] == [[5, 6, 7], [5, 6, 7]]
        assert reply.json()["usage"]["completion_tokens"] == 6
        call: dict[str, Any] = {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object"}},
        }
        user = {"role": "user", "content": "a"}
        body: dict[str, Any] = {"messages": [user], "tools": [call], "tool_choice": "required"}
        refused = await client.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
