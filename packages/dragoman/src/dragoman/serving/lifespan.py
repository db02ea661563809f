"""The server's lifespan, which starts what the application needs, then stops it."""

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
"""A function that runs until it is cancelled."""

CLEANUP_INTERVAL = 5.0
"""Seconds between two deletions of expired and excess records."""


class LifespanResource(Protocol):
    """A resource that is opened when the application starts and closed when it stops."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


def build_lifespan(
    service: Service,
    background: LifespanResource | None,
    downloads: LifespanResource | None,
    keys: LifespanResource | None,
    workers: Sequence[BackgroundWorker],
) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """Build the factory of the context that is open while the application runs.

    background: runs of background responses, which need the engines and the store.
    downloads: downloads of models.
    keys: reads the keys file when it changes.
    workers: run while the engines run, if there is a store.
    """

    @asynccontextmanager
    async def run(_: object) -> AsyncGenerator[None]:
        # Resources close in reverse order, because each may use the ones opened before
        # it. Background runs stop before the engines, and store their final state
        # before the store closes. Everything can write to the logs, so these close
        # last.
        async with AsyncExitStack() as stack:
            if service.telemetry is not None:
                stack.push_async_callback(asyncio.to_thread, service.telemetry.close)
            if service.generation.request_log is not None:
                stack.push_async_callback(asyncio.to_thread, service.generation.request_log.close)
            if service.tool_servers is not None:
                stack.push_async_callback(service.tool_servers.close)
            await _open(stack, service.store)
            # Opened before the models: requests that end while the models stop are
            # still counted.
            if not service.tenancy.keyring.is_open:
                await _open(stack, service.tenancy.ledger)
                await _open(stack, service.tenancy.counters)
            await service.models.start()
            stack.push_async_callback(service.models.stop)
            await _open(stack, background)
            await _open(stack, downloads)
            store = service.store
            running = (
                [] if store is None else [asyncio.create_task(worker(store)) for worker in workers]
            )
            try:
                # Last, since it reads the file again: no request may come with a key
                # that was revoked while the models were loaded.
                await _open(stack, keys)
                yield
            finally:
                # All are cancelled before any is awaited, so that they stop
                # concurrently.
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    return run


async def serve_lifespan(
    context: AbstractAsyncContextManager[object], receive: Receive, send: Send
) -> None:
    """Serve ASGI's lifespan protocol. Expected errors are reported by their message,
    bugs with a traceback.
    """
    await receive()
    has_started = False
    try:
        async with context:
            has_started = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
    # Expected errors, such as a missing model or a locked database: a traceback would
    # hide the reason.
    except (DragomanError, OSError, ValueError) as error:
        await send(
            {
                "type": f"lifespan.{'shutdown' if has_started else 'startup'}.failed",
                "message": str(error),
            }
        )
    except Exception:
        await send(
            {
                "type": f"lifespan.{'shutdown' if has_started else 'startup'}.failed",
                "message": format_exc(),
            }
        )
    else:
        await send({"type": "lifespan.shutdown.complete"})


async def _open(stack: AsyncExitStack, resource: LifespanResource | None) -> None:
    if resource is not None:
        await resource.open()
        stack.push_async_callback(resource.close)


async def run_cleanup(store: Store) -> None:
    """Delete abandoned uploads and expired records until cancelled, in small steps that
    let other writes interleave.
    """
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
