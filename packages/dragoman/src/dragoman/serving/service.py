"""The state that all handlers share, built by `build_asgi_app`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import Struct, field

from ..dialects.interfaces import ReaderOptions
from ..pipeline.model_registry import Models
from ..pipeline.recent_prompts import RecentPrompts
from ..pipeline.request_metrics import ModelMetrics
from ..store import Store
from ..tools.interface import ToolServers
from .auth import Caller
from .body_memory import BodyMemoryBudget
from .clock import Clock, IdGenerator
from .media import MediaResolver
from .recent_requests import RecentRequests
from .request_log import RequestLog
from .serving_options import ServingOptions
from .stream_keepalive import StreamMonitor
from .tenancy import Tenancy
from .tracing import Telemetry

STARTS_PER_TURN = 4
"""Requests started per iteration of the event loop."""


class StartLimiter:
    """Limits request starts in FIFO order: a burst of requests must not delay the
    tokens of running streams.

    Rendering and admitting a request costs as much as about thirty tokens. Rejecting
    one is cheap, so every check that can reject it (authentication, validation, a full
    queue) runs first.

    starts_per_turn: starts per iteration of the event loop.
    """

    def __init__(self, starts_per_turn: int = STARTS_PER_TURN) -> None:
        self._starts_per_turn = self._available = starts_per_turn
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def acquire(self) -> asyncio.Future[None] | None:
        """Return None if this iteration has capacity, otherwise a future that is done
        when a later one has.
        """
        if not self._is_scheduled:
            self._is_scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._on_loop_turn, loop)
        # FIFO: earlier waiters go first.
        if self._available and not self._waiters:
            self._available -= 1
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def _on_loop_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._available = self._starts_per_turn
        while self._waiters and self._available:
            waiter = self._waiters.popleft()
            if not waiter.done():  # a cancelled waiter is done
                waiter.set_result(None)
                self._available -= 1
        # Stop after an iteration without starts, so that an idle server does not spin.
        self._is_scheduled = bool(self._waiters) or self._available < self._starts_per_turn
        if self._is_scheduled:
            loop.call_soon(self._on_loop_turn, loop)


FindReaderOptions = Callable[[str, str | None, bool], ReaderOptions]
"""Returns the reader options by owner, default model and whether seals are kept."""


class GenerationServices(Struct, frozen=True):
    """The services that parse a request's body and admit its call to the engine, for
    every dialect.

    reader_options: those that all owners of API keys share.
    find_reader_options: returns those of one owner.
    meters: metrics of the calls of each model.
    request_log: None if requests are not logged.
    recent_prompts: the last prompts, for the `explain` endpoint; None unless
        `--explain` is set.
    recent_requests: the last requests without their content, for the page at `/ui`;
        None without that page.
    start_limiter: paces the expensive part of admitting a call.
    """

    reader_options: ReaderOptions
    find_reader_options: FindReaderOptions
    fingerprint: str
    media: MediaResolver
    meters: ModelMetrics
    request_log: RequestLog | None = None
    recent_prompts: RecentPrompts | None = None
    recent_requests: RecentRequests | None = None
    start_limiter: StartLimiter = field(default_factory=StartLimiter)


class Service(Struct, frozen=True):
    """The state that the handlers of all routes share. A feature's own state is passed
    only to its own routes.

    body_budget: the memory for all request bodies in flight.
    tenancy: the API keys, with their limits and usage.
    store: None if storage is disabled.
    telemetry: None if nothing is traced.
    tool_servers: the servers whose tools this server calls; None if there are none.
    """

    models: Models
    clock: Clock
    ids: IdGenerator
    options: ServingOptions
    generation: GenerationServices
    stream_monitor: StreamMonitor
    body_budget: BodyMemoryBudget
    tenancy: Tenancy
    store: Store | None = None
    telemetry: Telemetry | None = None
    tool_servers: ToolServers | None = None


def restrict_service(service: Service, caller: Caller) -> Service:
    """Return the service with only the models that the caller's key permits."""
    tenant = service.tenancy.keyring.peek_tenant(caller.owner)
    if tenant is None or not tenant.models:
        return service
    return msgspec.structs.replace(service, models=service.models.restrict(tenant.models))
