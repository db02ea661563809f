"""A server whose engine is another server, both in the test's process, connected over
HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from starlette.types import ASGIApp
from tests.http.wire import serving
from tests.serving.harness import Counting, Still

from dragoman.dialects.interfaces import Profile
from dragoman.engines.upstream import (
    KINDS,
    Upstream,
    UpstreamConfig,
    UpstreamDefaults,
    UpstreamEngine,
)
from dragoman.pipeline.model_registry import EventBackend, Models, ServedModel
from dragoman.serving.app import create_app
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.stream_keepalive import StreamTimeouts

VLLM = ServingOptions(
    profile=Profile.VLLM,
    # So long that keepalives, which are not compared, never occur on a slow machine.
    timeouts=StreamTimeouts(headers=3600.0, admitted_headers=3600.0, keepalive=3600.0),
)


async def asleep(_: float) -> None:
    """Sleep forever, so that no health check runs unless a test starts it."""
    await asyncio.Event().wait()


def engine(*urls: str, kind: str = "dragoman", model: str = "m", **config: Any) -> UpstreamEngine:
    """Build an upstream engine.

    urls: the upstreams' URLs, without `/v1`.
    """
    sleep = config.pop("sleep", asleep)
    upstreams = config.pop("upstreams", tuple(Upstream(f"{url}/v1") for url in urls))
    return UpstreamEngine(
        UpstreamConfig(
            upstreams, model, KINDS[kind], config.pop("defaults", UpstreamDefaults()), **config
        ),
        sleep=sleep,
    )


def server(models: Models, options: ServingOptions | None = None) -> ASGIApp:
    return create_app(models, options=options, clock=Still(), ids=Counting())


@asynccontextmanager
async def relay(
    behind: Models,
    options: ServingOptions | None = None,
    *,
    kind: str = "dragoman",
    behind_options: ServingOptions = VLLM,
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client of a server in front of one that serves these models; it relays
    the first model.

    kind: the API between the two servers.
    """
    first = next(iter(behind))
    await behind.start()
    try:
        async with serving(server(behind, behind_options)) as wire:
            upstream = engine(f"http://127.0.0.1:{wire.port}", kind=kind, model=first.name)
            front = Models(
                [
                    ServedModel(
                        first.name,
                        EventBackend(upstream, first.tokenizer),
                        first.max_model_len,
                        first.created,
                    )
                ]
            )
            async with direct(front, options) as it:
                yield it
    finally:
        await behind.stop()


@asynccontextmanager
async def direct(
    models: Models, options: ServingOptions | None = None
) -> AsyncGenerator[httpx2.AsyncClient]:
    await models.start()
    try:
        async with client(server(models, options)) as it:
            yield it
    finally:
        await models.stop()


def client(app: ASGIApp) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
