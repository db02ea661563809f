"""A model in files is checked before the server listens, and loaded while it listens.

The tokenizer is a named pipe, so that the load waits until the test writes to it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.launch.configured_models import build_models_in_background
from dragoman.pipeline.model_lifecycle import ModelSpec
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError, load_settings

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "max_tokens": 12,
    "temperature": 0,
}
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.find_bundled_model(), tmp_path / "house"))


@pytest.fixture
def held(directory: Path) -> Path:
    """Create a model that is loaded once its tokenizer is written to the pipe."""
    (directory / "tokenizer.json").unlink()
    os.mkfifo(directory / "tokenizer.json")
    return directory


@contextmanager
def serve(*arguments: str) -> Generator[tuple[subprocess.Popen[str], httpx2.Client]]:
    """Yield the process and a client once it listens."""
    # Without the access log: the pipe is not read meanwhile, and would fill up.
    options = ("--port", "0", "--store", "none", "--no-access-log")
    command = [sys.executable, "-m", "dragoman", "serve", *arguments, *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            found = re.match(
                r"Serving house on (\S+) \(loading; requests get 503 until GET /readyz", greeting
            )
            assert found is not None, greeting
            with httpx2.Client(base_url=found[1], timeout=60) as client:
                yield process, client
        finally:
            process.kill()


@needs_pipes
def test_server_answers_while_model_loads(held: Path):
    with serve(f"tiny:{held}", "--served-model-name", "house", "--served-model-name", "alias") as (
        process,
        client,
    ):
        states = {
            model["id"]: model["dragoman"]["state"]
            for model in client.get("/v1/models").json()["data"]
        }
        assert states == {"house": "loading", "alias": "loading"}
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()) == (
            503,
            {"model": "house", "reason": "the model is loading"},
        )
        ollama = {"model": "house", "messages": ASK["messages"]}
        # 529 is Anthropic's status for overload.
        for path, status, body in (
            ("/v1/chat/completions", 503, ASK),
            ("/v1/messages", 529, {**ASK, "model": "house"}),
            ("/api/chat", 503, ollama),
        ):
            refused = client.post(path, json=body)
            assert (path, refused.status_code, refused.headers.get("retry-after")) == (
                path,
                status,
                "5",
            )
            assert "The model `house` is being loaded; retry in a few seconds." in refused.text
        assert client.get("/livez").status_code == 200
        (held / "tokenizer.json").write_bytes(
            (tiny.find_bundled_model() / "tokenizer.json").read_bytes()
        )
        while client.get("/readyz").status_code != 200:
            assert process.poll() is None
        reply = client.post("/v1/chat/completions", json=ASK).json()
        assert reply["choices"][0]["message"]["content"] == "The capital of Japan is Tokyo."
        process.terminate()
        logged = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert (
        "house: engine tiny (MODEL names it), device cpu, weights in bf16, computed in float32, "
        in logged
    )
    assert "1,967,808 parameters, 3.9 MB" in logged
    assert "house is loaded" in logged


@needs_pipes
def test_server_stops_while_model_loads(held: Path):
    with serve(f"tiny:{held}") as (process, _):
        process.terminate()
        assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 0


@needs_pipes
def test_unloadable_model_exits_with_one_line_error(held: Path):
    with serve(f"tiny:{held}") as (process, _):
        (held / "tokenizer.json").write_text("no JSON")
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "Error: cannot serve house: " in errors
    assert "Traceback" not in errors


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_text(text, errors="surrogateescape")

    return write


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove("config.json"), "has no config.json, so it is not a model directory"),
        (_remove("tokenizer.json"), "contains no tokenizer.json"),
        (
            _remove("model.safetensors"),
            "contains no safetensors file; other formats are not supported",
        ),
        (_write("config.json", "{"), "config.json is not a valid Llama configuration"),
        (_write("config.json", '{"a\udcff": 1}'), "config.json is not a valid Llama configuration"),
        (_write("config.json", '{"architectures": ["FancyModel"]}'), "config.json"),
    ],
)
@pytest.mark.parametrize("build", [build_models, build_models_in_background])
def test_damaged_model_is_rejected_before_server_listens(
    directory: Path, damage: Callable[[Path], None], message: str, build: Callable[..., Models]
):
    damage(directory)
    for settings in (
        Settings(model=f"tiny:{directory}"),
        load_settings(
            {"models": f'{{"a": "tiny", "b": {{"model": "tiny:{directory}", "pinned": true}}}}'}, {}
        ),
    ):
        with pytest.raises(SettingsError) as raised:
            build(settings, SystemClock())
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)


def test_missing_chat_template_is_rejected_before_server_listens(directory: Path):
    settings = Settings(model=f"tiny:{directory}", chat_template="absent.jinja")
    with pytest.raises(SettingsError, match=r"absent\.jinja: No such file or directory"):
        build_models_in_background(settings, SystemClock())


async def test_pinned_models_load_at_start_under_configured_names(directory: Path):
    entries = (
        f'{{"a": {{"model": "tiny:{directory}", "pinned": true, "aliases": ["x-*"]}}, "b": '
        f'"tiny:{directory}"}}'
    )
    models = build_models_in_background(load_settings({"models": entries}, {}), SystemClock())
    assert [slot.status for slot in models.slots] == ["unloaded", "unloaded"]
    await models.start()
    try:
        assert [slot.status for slot in models.slots] == ["loading", "unloaded"]
        await models.begin_load(models.slots[0])
        model = await models.load_and_find("x-1")
        assert (model.name, model.aliases) == ("a", ("x-*",))
    finally:
        await models.stop()


def test_adapter_name_is_known_while_model_loads():
    def load() -> ServedModel:
        raise AssertionError

    models = Models([ModelSpec("base", load, 0, is_eager=True, adapters=("small",))])
    assert models.find_slot("small") is models.slots[0]


def test_embedded_model_is_loaded_immediately():
    (slot,) = build_models_in_background(Settings(), SystemClock()).slots
    assert (slot.status, slot.spec) == ("loaded", None)
