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
from tests.serving.harness import FixedClock, SequentialIds

from dragoman.dialects.interfaces import Profile
from dragoman.engines.upstream import (
    KINDS,
    Upstream,
    UpstreamConfig,
    UpstreamDefaults,
    UpstreamEngine,
)
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.stream_keepalive import StreamTimeouts

VLLM = ServingOptions(
    profile=Profile.VLLM,
    # So long that keepalives, which are not compared, never occur on a slow machine.
    timeouts=StreamTimeouts(headers=3600.0, admitted_headers=3600.0, keepalive=3600.0),
)


async def sleep_forever(_: float) -> None:
    """Sleep forever, so that no health check runs unless a test starts it."""
    await asyncio.Event().wait()


def build_engine(
    *urls: str, kind: str = "dragoman", model: str = "m", **config: Any
) -> UpstreamEngine:
    """Build an upstream engine.

    urls: the upstreams' URLs, without the API's version.
    """
    sleep = config.pop("sleep", sleep_forever)
    version = KINDS[kind].api.version or "/v1"
    upstreams = config.pop("upstreams", tuple(Upstream(url + version) for url in urls))
    return UpstreamEngine(
        UpstreamConfig(
            upstreams, model, KINDS[kind], config.pop("defaults", UpstreamDefaults()), **config
        ),
        sleep=sleep,
    )


def build_app(models: Models, options: ServingOptions | None = None) -> ASGIApp:
    return build_asgi_app(models, options=options, clock=FixedClock(), ids=SequentialIds())


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
        async with serving(build_app(behind, behind_options)) as wire:
            upstream = build_engine(f"http://127.0.0.1:{wire.port}", kind=kind, model=first.name)
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
            async with direct(front, options) as client:
                yield client
    finally:
        await behind.stop()


@asynccontextmanager
async def direct(
    models: Models, options: ServingOptions | None = None
) -> AsyncGenerator[httpx2.AsyncClient]:
    await models.start()
    try:
        async with build_client(build_app(models, options)) as client:
            yield client
    finally:
        await models.stop()


def build_client(app: ASGIApp) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
