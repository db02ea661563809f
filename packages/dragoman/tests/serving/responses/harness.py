"""A server with a store in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message
from tests.serving.harness import FixedClock, ServerHarness, load_tiny_tokenizer

from dragoman.engines.scripted import Script, ScriptedEngine, ScriptEntry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import RandomIdGenerator
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import MemoryStore, Store


def build_storing_server(
    *entries: ScriptEntry,
    store: Store | None = None,
    options: ServingOptions | None = None,
    **engine_options: Any,
) -> ServerHarness:
    """Build a server with a store. Its ids are random, as required for stored objects."""
    tokenizer = load_tiny_tokenizer()
    engine = ScriptedEngine(Script(tuple(entries)), tokenizer=tokenizer, **engine_options)
    model = ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000)
    app = build_asgi_app(
        Models([model]),
        options=options,
        clock=FixedClock(),
        ids=RandomIdGenerator(),
        store=store or MemoryStore(),
    )
    return ServerHarness(app, engine)


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncGenerator[None]:
    """Start the app, and stop it after the block."""
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    running = asyncio.ensure_future(
        app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put)
    )
    await to_app.put({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
        await running
