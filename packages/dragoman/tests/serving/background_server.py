"""A server with a store that also works without waiting clients, in the test's process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.serving.harness import FixedClock, ServerHarness, load_tiny_tokenizer
from tests.serving.responses.harness import lifespan

from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import Clock, RandomIdGenerator
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import MemoryStore, Store


@asynccontextmanager
async def run_background_server(
    *entries: ScriptEntry,
    store: Store | None = None,
    clock: Clock | None = None,
    options: ServingOptions | None = None,
    engine_options: Mapping[str, Any] | None = None,
) -> AsyncGenerator[ServerHarness]:
    """Run the server. Without script entries every request is answered."""
    tokenizer = load_tiny_tokenizer()
    engine = ScriptedEngine(
        Script(entries or (ScriptEntry((Say("Hello."),), repeat=True),)),
        tokenizer=tokenizer,
        **(engine_options or {}),
    )
    model = ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000)
    clock = clock or FixedClock()
    store = store or MemoryStore(now=clock.now)
    app = build_asgi_app(
        Models([model]), options=options, clock=clock, ids=RandomIdGenerator(), store=store
    )
    async with lifespan(app):
        yield ServerHarness(app, engine)
