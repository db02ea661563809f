"""The test kit for engines, run on every engine that is installed. The tests of an
engine share it and its event loop.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
import pytest_asyncio
from tests.engines.llamacpp.files import write_embedded
from tests.engines.remote.splitting import NEEDS_FORK, remote
from tests.engines.rollout.executors import Dice

from dragoman.core.engine import Engine
from dragoman.dialects.interfaces import Profile
from dragoman.engines import tiny
from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.launch import Server, ShutdownConfig, build_models, build_uvicorn_config
from dragoman.launch.plugin import build_executor_model
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import load_tokenizer
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings
from dragoman.testing import EngineKit, EngineUnderTest
from dragoman.testing.engine_kit import LONG_TEXT


def embedded() -> Models:
    return build_models(Settings(max_model_len=4096, max_num_seqs=32), SystemClock())


def for_torch(sampling_device: Literal["auto", "model"] = "auto") -> Settings:
    pytest.importorskip("torch", reason="needs torch (CPU)")
    pytest.importorskip("transformers", reason="needs transformers")
    model = f"transformers:{tiny.find_bundled_model()}"
    return Settings().replace(
        model=model,
        max_model_len=4096,
        max_num_seqs=32,
        device="cpu",
        sampling_device=sampling_device,
    )


def in_torch(sampling_device: Literal["auto", "model"] = "auto") -> Models:
    return build_models(for_torch(sampling_device), SystemClock())


def in_mlx() -> Models:
    pytest.importorskip("mlx.core", reason="needs mlx")
    pytest.importorskip("mlx_lm", reason="needs mlx-lm")
    model = f"mlx:{tiny.find_bundled_model()}"
    return build_models(
        Settings(model=model, max_model_len=4096, max_num_seqs=32, dtype="float32"), SystemClock()
    )


@contextmanager
def for_llamacpp() -> Generator[Settings]:
    pytest.importorskip("xllamacpp", reason="needs xllamacpp")
    pytest.importorskip("gguf", reason="needs gguf")
    with TemporaryDirectory() as folder:
        file = write_embedded(Path(folder) / "tiny.gguf")
        yield Settings().replace(
            model=str(file),
            max_model_len=4096,
            max_num_seqs=32,
            threads=1,
            dtype="float32",
            deterministic=True,
        )


@asynccontextmanager
async def in_llamacpp() -> AsyncGenerator[Models]:
    with for_llamacpp() as settings:
        async with started(build_models(settings, SystemClock())) as models:
            yield models


def scripted() -> Models:
    tokenizer = load_tokenizer(tiny.find_bundled_model())
    engine = ScriptedEngine(
        Script((ScriptEntry((Say(LONG_TEXT),), repeat=True),)),
        tokenizer=tokenizer,
        max_model_len=4096,
    )
    return Models([ServedModel("scripted", EventBackend(engine, tokenizer), 4096, 0)])


@asynccontextmanager
async def started(models: Models) -> AsyncGenerator[Models]:
    await models.start()
    yield models
    await models.stop()


@asynccontextmanager
async def upstream(
    kind: Literal["auto", "anthropic", "responses"] = "auto",
) -> AsyncGenerator[Models]:
    """Yield an engine whose upstream is a server of the embedded model on a real
    socket.

    kind: the API that the engine uses.
    """
    behind = embedded()
    options = ServingOptions(profile=Profile.VLLM)
    server = Server(
        build_uvicorn_config(build_asgi_app(behind, options=options), Settings(log_level="error")),
        behind,
        shutdown_config=ShutdownConfig(timeout=0.0),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        (model,) = await asyncio.to_thread(
            build_models, Settings().replace(model=url, upstream_kind=kind), SystemClock()
        )
        engine = model.backend.engine
        assert isinstance(engine, Engine)
        backend = EventBackend(engine, next(iter(behind)).tokenizer)
        async with started(Models([replace(model, backend=backend)])) as models:
            yield models
        server.should_exit = True
        await task


def documented() -> Models:
    """Yield the third-party engine of the docs."""
    page = Path(__file__).parents[4] / "docs" / "plugins.md"
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / "parrot.py").write_text(
            re.findall("```python\n(.*?)```", page.read_text(), re.DOTALL)[0]
        )
        patch.syspath_prepend(folder)  # pyright: ignore[reportUnknownMemberType]
        return build_models(
            Settings(model="python:parrot:create", max_model_len=4096), SystemClock()
        )


def simulated() -> Models:
    settings = Settings(model="sim", max_model_len=4096).replace(
        time_scale=1000.0, sim_output_tokens="lognormal:40,0.5"
    )
    return build_models(settings, SystemClock())


def rollout() -> Models:
    return Models(
        [
            build_executor_model(
                Settings(), SystemClock(), Dice(), own_name="dice", max_model_len=4096
            )
        ]
    )


def behind_a_socket() -> AbstractAsyncContextManager[Models]:
    """Yield the embedded model behind the socket of an engine process."""
    return remote(embedded())


def in_torch_behind_a_socket() -> AbstractAsyncContextManager[Models]:
    return remote(in_torch(), for_torch())


@asynccontextmanager
async def in_llamacpp_behind_a_socket() -> AsyncGenerator[Models]:
    with for_llamacpp() as settings:
        async with remote(build_models(settings, SystemClock()), settings) as models:
            yield models


SUBJECTS = [
    pytest.param(lambda: started(embedded()), id="tiny"),
    pytest.param(behind_a_socket, id="remote", marks=NEEDS_FORK),
    pytest.param(
        in_torch_behind_a_socket, id="remote-transformers", marks=[NEEDS_FORK, pytest.mark.torch]
    ),
    pytest.param(
        in_llamacpp_behind_a_socket, id="remote-llamacpp", marks=[NEEDS_FORK, pytest.mark.llamacpp]
    ),
    pytest.param(lambda: started(scripted()), id="scripted"),
    pytest.param(lambda: started(simulated()), id="sim"),
    pytest.param(lambda: started(in_torch()), id="transformers", marks=pytest.mark.torch),
    pytest.param(
        lambda: started(in_torch("model")),
        id="transformers sampling on its device",
        marks=pytest.mark.torch,
    ),
    pytest.param(lambda: started(in_mlx()), id="mlx", marks=pytest.mark.mlx),
    pytest.param(in_llamacpp, id="llamacpp", marks=pytest.mark.llamacpp),
    pytest.param(upstream, id="upstream"),
    pytest.param(lambda: started(rollout()), id="rollout"),
    pytest.param(lambda: started(documented()), id="documented"),
]


@pytest_asyncio.fixture(params=SUBJECTS, scope="module", loop_scope="module")
async def subject(request: pytest.FixtureRequest) -> AsyncGenerator[EngineUnderTest]:
    make: Callable[[], AbstractAsyncContextManager[Models]] = request.param
    async with make() as models:
        model = next(iter(models))
        is_scripted = isinstance(model.backend.engine, ScriptedEngine)
        yield EngineUnderTest(
            model,
            is_exact=make not in (in_llamacpp, in_llamacpp_behind_a_socket),
            is_scripted=is_scripted,
        )


# Copied rather than inherited: the kit's marker gives each test a separate event loop.
TestEngines = type(
    "TestEngines",
    (),
    {
        **{name: value for name, value in vars(EngineKit).items() if name.startswith("test_")},
        "pytestmark": pytest.mark.asyncio(loop_scope="module"),
    },
)
