"""A server with a store that also works without waiting clients, in the test's process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.serving.harness import ServerHarness, Still, tokenizer
from tests.serving.responses.harness import lifespan

from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.pipeline.model_registry import EventBackend, Models, ServedModel
from dragoman.serving.app import create_app
from dragoman.serving.clock import Clock, RandomIdGenerator
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import MemoryStore, Store


@asynccontextmanager
async def working(
    *entries: ScriptEntry,
    store: Store | None = None,
    clock: Clock | None = None,
    options: ServingOptions | None = None,
    engine: Mapping[str, Any] | None = None,
) -> AsyncGenerator[ServerHarness]:
    """Run the server. Without script entries every request is answered."""
    lent = tokenizer()
    actor = ScriptedEngine(
        Script(entries or (ScriptEntry((Say("Hello."),), repeat=True),)),
        tokenizer=lent,
        **(engine or {}),
    )
    model = ServedModel("m", EventBackend(actor, lent), 4096, 1_700_000_000)
    clock = clock or Still()
    store = store or MemoryStore(now=clock.now)
    app = create_app(
        Models([model]), options=options, clock=clock, ids=RandomIdGenerator(), store=store
    )
    async with lifespan(app):
        yield ServerHarness(app, actor)
