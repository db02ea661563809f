"""Any request to any route gets a response of its dialect; the server does not fail,
and nothing leaks or stays active.

FUZZ_REQUESTS, FUZZ_SEED: number of requests of the long run, and its seed; a failure
    reports the seed to repeat it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from starlette.types import ASGIApp
from tests.engines.encoder.directories import write_encoder
from tests.hardening.test_routes import TABLE
from tests.serving.harness import load_tiny_tokenizer
from tests.serving.responses.harness import lifespan

from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry, Think
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings
from dragoman.store import MemoryStore
from dragoman_check.rules.json_values import Violation

from .exchange import Request, send_request
from .judge import check_response
from .mutate import damage, mutate
from .requests import SKETCHES, State, draw_request

RUNS = 8
EACH = 250
LONG_RUNS = 40
LONG_REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "100000"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))

HOLDING = (
    "/pause",
    "/pause_generation",
    "/sleep",
    "/release_memory_occupation",
    "/start_weight_update",
)
"""Routes that pause generation; their effect is undone before the next request."""


def load_model(settings: Settings) -> ServedModel:
    (place,) = build_models(settings, SystemClock()).slots
    assert place.model is not None
    return place.model


@asynccontextmanager
async def server(folder: Path) -> AsyncGenerator[tuple[ASGIApp, Models]]:
    script = Script(
        (
            ScriptEntry(
                (Think("Let me see."), Say("Hello there, this is x and more of it.")), repeat=True
            ),
        )
    )
    tokenizer = load_tiny_tokenizer()
    models = Models(
        [
            ServedModel(
                "s", EventBackend(ScriptedEngine(script, tokenizer=tokenizer), tokenizer), 4096, 0
            ),
            load_model(
                Settings(
                    model="tiny", served_model_name=("t",), max_model_len=64, kv_cache_tokens=1024
                )
            ),
            load_model(
                Settings(model=f"encoder:{write_encoder(folder)}", served_model_name=("e",))
            ),
        ]
    )
    app = build_asgi_app(models, store=MemoryStore(), options=ServingOptions(explain=True))
    async with lifespan(app):
        yield app, models


async def undo(app: ASGIApp) -> None:
    for path in (
        "/resume",
        "/continue_generation",
        "/wake_up",
        "/resume_memory_occupation",
        "/shutdown_weight_transfer_engine",
    ):
        await send_request(app, Request("POST", path, path))
    await send_request(app, Request("PUT", "/dragoman/faults", "/dragoman/faults", b"[]"))


def is_idle(models: Models) -> bool:
    states = [engine.health() for model in models for engine in model.engines]
    return not any(state.running or state.waiting for state in states) and not any(
        model.progress.running for model in models
    )


async def fuzz(folder: Path, seed: int, requests: int) -> None:
    random = Random(seed)
    state = State()
    failures: list[str] = []
    async with server(folder) as (app, models):
        for number in range(requests):
            request = draw_request(random, state)
            try:
                response = await send_request(app, request)
                check_response(request, response)
                state.note(request, response)
            except Exception as error:
                failures.append(
                    f"seed {seed}, request {number}: {type(error).__name__} {error}\n    {request}"
                )
            if request.route in HOLDING:
                await undo(app)
        async with asyncio.timeout(60):
            while not is_idle(models):  # noqa: ASYNC110 - an engine has a state but no event for it
                await asyncio.sleep(0.01)
        before = asyncio.all_tasks()
    assert asyncio.all_tasks() <= before
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])


@pytest.mark.parametrize("run", range(RUNS))
async def test_fuzz_requests_get_valid_dialect_responses(run: int, tmp_path: Path) -> None:
    await fuzz(tmp_path, SEED + run, EACH)


@pytest.mark.long
@pytest.mark.parametrize("run", range(LONG_RUNS))
async def test_fuzz_requests_long_run_get_valid_dialect_responses(run: int, tmp_path: Path) -> None:
    await fuzz(tmp_path, SEED + 1000 + run, -(-LONG_REQUESTS // LONG_RUNS))


def test_fuzz_sketches_cover_every_route() -> None:
    """A new route needs an entry in `requests.SKETCHES`."""
    assert set(SKETCHES) == {
        (method, path) for path, route in TABLE.items() for method in route.operations
    }


def test_check_response_rejects_invalid_responses() -> None:
    from .exchange import Response

    chat = Request("POST", "/v1/chat/completions", "/v1/chat/completions", b"{}")
    json_type = {"content-type": "application/json"}
    error = json.dumps(
        {"error": {"message": "m", "type": "t", "param": None, "code": None}}
    ).encode()
    check_response(chat, Response(400, json_type, error, is_complete=True))
    for wrong in (
        Response(500, json_type, error, is_complete=True),
        Response(
            400,
            json_type,
            error.replace(b'"m"', b'"Traceback (most recent call last)"'),
            is_complete=True,
        ),
        Response(
            400, json_type, error.replace(b'"m"', b'"No such file: /tmp/x"'), is_complete=True
        ),
        Response(400, json_type, b'{"detail": "m"}', is_complete=True),
        Response(400, {"content-type": "text/plain"}, b"Bad Request", is_complete=True),
        Response(200, {"content-type": "text/event-stream"}, b"data: {}\n\n", is_complete=True),
        Response(200, json_type, b"{}", is_complete=True),
        Response(200, json_type, b"", is_complete=False),
    ):
        with pytest.raises(Violation):
            check_response(chat, wrong)


def test_mutations_change_bodies_and_are_seed_deterministic() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "n": 1}
    drawn = [repr(mutate(Random(seed), body, words=["a"])) for seed in range(50)]
    assert drawn == [repr(mutate(Random(seed), body, words=["a"])) for seed in range(50)]
    assert sum(other != repr(body) for other in drawn) > 40
    assert damage(Random(1), b"{}") == damage(Random(1), b"{}")
