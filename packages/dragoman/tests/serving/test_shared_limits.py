"""Limits that two servers share, over HTTP. Tests advance the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.hardening.test_fairness import SteppedEvents
from tests.serving.responses.harness import lifespan

from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.store import MemoryStore, SqliteStore
from dragoman.tenants import Tenant
from dragoman.tenants.limits_store import Batch, BatchResult, LimitsStoreUnavailable
from dragoman.tenants.shared_counters import SharedCounters
from dragoman.tenants.sqlite_limits import SqliteLimits

from .test_tenancy import CHAT, ManualClock, Server, serving, tenant

COMPLETION = {"model": "m", "prompt": "one two three four five six"}


class CountedLimits(SqliteLimits):
    """Counts its round trips; fails while `is_down`."""

    trips = 0
    is_down = False

    async def apply(self, batch: Batch) -> BatchResult:
        self.trips += 1
        if self.is_down:
            raise LimitsStoreUnavailable("the disk is gone")
        return await super().apply(batch)


@dataclass
class Replica:
    server: Server
    limits: CountedLimits
    counters: SharedCounters


@asynccontextmanager
async def replicas(
    path: Path, keys: dict[str, Tenant], clock: ManualClock, number: int = 2
) -> AsyncGenerator[list[Replica]]:
    async with AsyncExitStack() as stack:
        started: list[Replica] = []
        for _ in range(number):
            limits = CountedLimits(path / "limits.db", lambda: round(clock.now() * 1_000_000))
            counters = SharedCounters(limits, clock.monotonic)
            store = SqliteStore(path / "store.db", now=clock.now)
            server = await stack.enter_async_context(
                serving(keys, store=store, counters=counters, clock=clock)
            )
            started.append(Replica(server, limits, counters))
        yield started


async def test_shared_limits_count_requests_and_tokens_of_both_servers(tmp_path: Path) -> None:
    clock = ManualClock()
    keys = {"a": tenant("a", requests_per_minute=4, tokens_per_minute=1000)}
    async with replicas(tmp_path, keys, clock) as servers:
        used = 0
        for number in range(4):
            answer = await servers[number % 2].server.post("a")
            await servers[number % 2].counters.settle()
            used += answer.json()["usage"]["total_tokens"]
            assert answer.headers["x-ratelimit-remaining-requests"] == str(3 - number)
        for each in servers:
            rejected = await each.server.post("a")
            assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "15")
            assert rejected.headers["x-ratelimit-remaining-tokens"] == str(1000 - used)
        clock.elapsed = 15
        assert [(await each.server.post("a")).status_code for each in servers] == [200, 429]


async def test_shared_limits_rejected_long_prompt_is_not_charged(tmp_path: Path) -> None:
    clock = ManualClock()
    async with replicas(
        tmp_path, {"a": tenant("a", requests_per_minute=10, tokens_per_minute=60)}, clock
    ) as servers:
        assert (await servers[0].server.post("a", "/v1/completions", COMPLETION)).status_code == 200
        await servers[0].counters.settle()
        for each in servers:
            rejected = await each.server.post(
                "a", "/v1/completions", {"model": "m", "prompt": "word " * 59}
            )
            assert (rejected.status_code, rejected.json()["error"]["type"]) == (429, "tokens")
            assert rejected.headers["x-ratelimit-remaining-requests"] == "9"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 0),
        ({"requests_per_minute": 9}, 1),
        ({"requests_per_minute": 9, "tokens_per_minute": 9999}, 2),
        ({"concurrent_requests": 9}, 2),
        (
            {
                "requests_per_minute": 9,
                "tokens_per_minute": 9999,
                "concurrent_requests": 9,
                "tokens_per_day": 9999,
            },
            2,
        ),
    ],
)
async def test_shared_limits_round_trips_per_request(
    tmp_path: Path, limits: dict[str, Any], expected: int
) -> None:
    async with replicas(tmp_path, {"a": tenant("a", **limits)}, ManualClock(), 1) as (replica,):
        for number in (1, 2, 3):
            assert (await replica.server.post("a")).status_code == 200
            await replica.counters.settle()
            assert replica.limits.trips == number * expected


async def test_shared_limits_count_concurrent_requests_of_both_servers(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = SteppedEvents()
    keys = {"a": tenant("a", concurrent_requests=2)}
    async with AsyncExitStack() as stack:
        servers: list[Server] = []
        for _ in range(2):
            limits = SqliteLimits(tmp_path / "limits.db", lambda: round(clock.now() * 1_000_000))
            counters = SharedCounters(limits, clock.monotonic)
            models = Models([ServedModel("m", EventBackend(engine), 4096, 0)])
            app = build_asgi_app(
                models,
                clock=clock,
                store=MemoryStore(now=clock.now),
                tenants=keys,
                counters=counters,
            )
            await stack.enter_async_context(lifespan(app))
            servers.append(Server(app, clock))
        running = [asyncio.create_task(server.post("a")) for server in servers]
        await wait_until_pending(engine, 2)
        for server in servers:
            rejected = await server.post("a")
            assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
        engine.pending[0]()
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        # Finished requests release their slots in the background.
        while (answer := await first_answer(servers[1], engine)).status_code == 429:
            pass
        assert answer.status_code == 200
        for end in engine.pending:
            end()
        assert {(await task).status_code for task in running} == {200}


async def wait_until_pending(engine: SteppedEvents, number: int) -> None:
    """Wait as `wait_for_requests` does, for requests that wait for a thread."""
    loop = asyncio.get_running_loop()
    while len(engine.pending) < number:
        await loop.run_in_executor(None, lambda: None)


async def first_answer(server: Server, engine: SteppedEvents) -> Any:
    """Return the response to a request that the engine ends at once if it gets it."""
    number = len(engine.pending)
    task = asyncio.create_task(server.post("a"))
    loop = asyncio.get_running_loop()
    while not task.done() and len(engine.pending) == number:
        await loop.run_in_executor(None, lambda: None)
    for end in engine.pending[number:]:
        end()
    return await task


async def test_shared_budget_counts_both_servers_and_survives_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    keys = {"a": tenant("a", tokens_per_day=1)}
    async with replicas(tmp_path, keys, clock) as (one, other):
        assert (await one.server.post("a")).status_code == 200
        await one.counters.settle()
        rejected = await other.server.post("a")
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (
            429,
            "insufficient_quota",
        )
        assert rejected.headers["retry-after"] == str(int(13.5 * 3600))
    # Usage is in the store, so a lost counter does not give a fresh budget.
    (tmp_path / "limits.db").unlink()
    async with replicas(tmp_path, keys, clock) as (one, other):
        assert [(await each.server.post("a")).status_code for each in (one, other)] == [429, 429]
        clock.elapsed = 13.5 * 3600
        assert (await other.server.post("a")).status_code == 200


async def test_shared_limits_store_failure_limits_per_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with replicas(tmp_path, {"a": tenant("a", requests_per_minute=4)}, clock) as (one, other):
        assert (await one.server.post("a")).status_code == 200
        one.limits.is_down = True
        # It knows that one of four was used, but not what the other server admits.
        assert [(await one.server.post("a")).status_code for _ in range(5)] == [
            200,
            200,
            200,
            429,
            429,
        ]
        assert (await other.server.post("a")).status_code == 200
        metrics = (await one.server.get("a", "/metrics")).text
        assert "dragoman:limits_store_failing 1.0" in metrics
        assert "dragoman:limits_store_errors_total 1.0" in metrics
        lines = [record.message for record in caplog.records if "limits store" in record.message]
        assert lines == [
            "the limits store fails; each process applies the limits alone until it responds: the "
            "disk is gone"
        ]
        one.limits.is_down = False
        await one.counters.renew()
        assert "dragoman:limits_store_failing 0.0" in (await one.server.get("a", "/metrics")).text
        # Five requests were admitted: one too many, and the sixth waits until two have
        # been refilled.
        rejected = await other.server.post("a")
        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "30")


async def test_shared_limits_invalid_prompt_charges_request_not_tokens(tmp_path: Path) -> None:
    keys = {"a": tenant("a", requests_per_minute=4, tokens_per_minute=100, concurrent_requests=1)}
    async with replicas(tmp_path, keys, ManualClock(), 1) as (replica,):
        for _ in range(2):
            # This server fetches no media.
            image = {"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}
            wrong = await replica.server.post(
                "a", body={"model": "m", "messages": [{"role": "user", "content": [image]}]}
            )
            assert wrong.status_code == 400
            await replica.counters.settle()
        headers = (await replica.server.get("a", "/v1/models")).headers
        assert headers["x-ratelimit-remaining-requests"] == "2"
        assert headers["x-ratelimit-remaining-tokens"] == "100"
        assert (await replica.server.post("a", body=CHAT)).status_code == 200
