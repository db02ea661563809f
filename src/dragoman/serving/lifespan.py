"""The server's lifespan: engines, store and background workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from traceback import format_exc
from typing import Protocol

from starlette.types import Receive, Send

from ..core.errors import DragomanError
from ..store import Store, StoreUnavailable
from .file_store import delete_abandoned_uploads
from .service import Service

BackgroundWorker = Callable[[Store], Coroutine[None, None, None]]
"""Runs until it is cancelled."""

CLEANUP_INTERVAL = 5.0
"""Seconds between two removals of expired and excess records."""


class LifespanResource(Protocol):
    """Opened when the application starts, and closed when it stops."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


def build_lifespan(
    service: Service,
    background: LifespanResource | None,
    downloads: LifespanResource | None,
    workers: Sequence[BackgroundWorker],
) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """background: runs that need the engines and the store. downloads: of models.

    workers: run while the engines run, if there is a store.
    """

    @asynccontextmanager
    async def run(_: object) -> AsyncGenerator[None]:
        # Each may use the previous ones until it has stopped. Background runs stop before the engines, and store their
        # end before the store closes; everything can write to the logs, which are therefore closed last.
        async with AsyncExitStack() as stack:
            if service.telemetry is not None and service.telemetry.exporter is not None:
                stack.push_async_callback(asyncio.to_thread, service.telemetry.exporter.close)
            if service.generation.request_log is not None:
                stack.push_async_callback(asyncio.to_thread, service.generation.request_log.close)
            await _open(stack, service.store)
            # Generations can end, and are counted, until the models have stopped.
            if not service.tenancy.keyring.is_open:
                await _open(stack, service.tenancy.ledger)
                await _open(stack, service.tenancy.counters)
            await service.models.start()
            stack.push_async_callback(service.models.stop)
            await _open(stack, background)
            await _open(stack, downloads)
            store = service.store
            running = [] if store is None else [asyncio.create_task(worker(store)) for worker in workers]
            try:
                yield
            finally:
                # All are cancelled first, so that they end side by side.
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    return run


async def serve_lifespan(context: AbstractAsyncContextManager[object], receive: Receive, send: Send) -> None:
    """Serve ASGI's lifespan protocol. Expected errors are reported in a line, bugs with a traceback."""
    await receive()
    has_started = False
    try:
        async with context:
            has_started = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
    # For example a missing model or a locked database: a traceback would hide the reason.
    except (DragomanError, OSError, ValueError) as error:
        await send({"type": f"lifespan.{'shutdown' if has_started else 'startup'}.failed", "message": str(error)})
    except Exception:
        await send({"type": f"lifespan.{'shutdown' if has_started else 'startup'}.failed", "message": format_exc()})
    else:
        await send({"type": "lifespan.shutdown.complete"})


async def _open(stack: AsyncExitStack, resource: LifespanResource | None) -> None:
    if resource is not None:
        await resource.open()
        stack.push_async_callback(resource.close)


async def run_cleanup(store: Store) -> None:
    """Remove expired records in small steps, so that other writes can interleave."""
    while True:
        try:
            await delete_abandoned_uploads(store)
            # Yields to other tasks; there is no event to wait for.
            while await store.clean():  # noqa: ASYNC110
                await asyncio.sleep(0)
        except StoreUnavailable:
            # The store has logged the error; the next round tries again.
            pass
        await asyncio.sleep(CLEANUP_INTERVAL)
