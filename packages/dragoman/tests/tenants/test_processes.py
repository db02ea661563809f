"""Processes that share a real store: limits hold in real time, and the slots of a
killed process are freed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.tenants.counters import Demand
from dragoman.tenants.limits_store import LimitsStore
from dragoman.tenants.shared_counters import SharedCounters
from dragoman.tenants.sqlite_limits import SqliteLimits, read_wall_clock

PROCESSES = 3
ATTEMPTS = 40
REQUESTS = 50
PLACES = 4
PLACE = Demand("places", PLACES, period=0)

# A process that imported them from this module would import pytest too.
CONSTANTS = f"""
from dragoman.tenants.counters import Demand

ATTEMPTS = {ATTEMPTS}
REQUESTS = {REQUESTS}
PLACES = {PLACES}
PLACE = Demand("places", PLACES, period=0)
"""
WORKER = """
import asyncio, os, sys, time
from dragoman.launch.limits_store import build_counters, build_limits_store
from dragoman.settings import Settings

async def work(counters, task):
    for _ in range(ATTEMPTS // 8):
        if await counters.take("key", [Demand("requests", REQUESTS)]) is None:
            print("admitted", flush=True)
        if await counters.take("key", [PLACE]) is None:
            start = time.monotonic_ns()
            await asyncio.sleep(0)
            print("held", start, time.monotonic_ns(), flush=True)
            counters.add("key", Demand(PLACE.counter, PLACE.limit, period=0, amount=-1))

async def main():
    counters = build_counters(build_limits_store(Settings(limits_store=sys.argv[1], keys_file="keys"), os.environ))
    await counters.open()
    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(work(counters, task) for task in range(8)))
    await counters.close()

asyncio.run(main())
"""  # noqa: E501
HOLDER = """
import asyncio, os, sys
from dragoman.launch.limits_store import build_counters, build_limits_store
from dragoman.settings import Settings

async def main():
    counters = build_counters(build_limits_store(Settings(limits_store=sys.argv[1], keys_file="keys"), os.environ))
    await counters.open()
    for _ in range(PLACES):
        assert await counters.take("key", [PLACE]) is None
    print("held", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""  # noqa: E501


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:{tmp_path / 'limits.db'}"
        case "postgres":
            return request.getfixturevalue("postgres")
        case _:
            return empty_database(f"{request.getfixturevalue('redis_url')}?db=9")


def empty_database(url: str) -> str:
    """Tests in any order share the server, and a killed process holds its places for
    half a minute.
    """
    from redis import Redis  # pyright: ignore

    client: Any = Redis.from_url(url)  # pyright: ignore
    client.flushdb()
    client.close()
    return url


def start(script: str, address: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", CONSTANTS + script, address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        cwd=Path(__file__).parents[4],
    )  # fmt: skip


def build_store(address: str, now: Callable[[], int] | None) -> LimitsStore:
    kind, _, path = address.partition(":")
    if kind == "sqlite":
        return SqliteLimits(Path(path), now or read_wall_clock)
    if kind == "postgresql":
        from dragoman.tenants.postgres_limits import PostgresLimits

        return PostgresLimits(address, now)
    from dragoman.tenants.redis_limits import RedisLimits

    return RedisLimits(address, now)


def test_shared_counters_limits_hold_across_processes(address: str) -> None:
    begin = time.monotonic()
    workers = [start(WORKER, address) for _ in range(PROCESSES)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    outputs = [worker.communicate()[0] for worker in workers]
    minutes = (time.monotonic() - begin) / 60
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    lines = [line.split() for output in outputs for line in output.splitlines()]
    admitted = lines.count(["admitted"])
    assert REQUESTS <= admitted <= REQUESTS * (1 + minutes)
    edges = sorted(
        (int(time), step)
        for line in lines
        if line[0] == "held"
        for time, step in zip(line[1:], (1, -1), strict=True)
    )
    assert edges
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    assert most <= PLACES


async def test_shared_counters_killed_process_frees_slots_after_lease(address: str) -> None:
    holder = start(HOLDER, address)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    now = SharedCounters(build_store(address, None), time.monotonic)
    later = SharedCounters(
        build_store(address, lambda: read_wall_clock() + 31_000_000), time.monotonic
    )
    await now.open()
    assert await now.take("key", [PLACE]) is not None
    holder.kill()
    holder.communicate()
    assert await now.take("key", [PLACE]) is not None
    await now.close()
    await later.open()
    for _ in range(PLACES):
        assert await later.take("key", [PLACE]) is None
    assert await later.take("key", [PLACE]) is not None
    await later.close()


async def test_shared_counters_reconnect_after_database_disconnect(postgres: str) -> None:
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]

    counters = SharedCounters(build_store(postgres, None), time.monotonic)
    await counters.open()
    assert await counters.take("key", [Demand("requests", 2)]) is None
    driver: Any = asyncpg
    other = await driver.connect(postgres)
    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
        "usename = 'dragoman'"
    )
    await other.close()
    # The first batch after that fails, or finds the connection closed; no usage is
    # counted twice.
    assert await counters.take("key", [Demand("requests", 2)]) is None
    await counters.renew()
    assert not counters.is_failing
    assert await counters.take("key", [Demand("requests", 2)]) is not None
    await counters.close()


async def test_shared_counters_restore_slots_after_redis_flush(
    redis_url: str,
) -> None:
    from redis.asyncio import Redis  # pyright: ignore

    address = f"{redis_url}?db=8"
    one, other = (SharedCounters(build_store(address, None), time.monotonic) for _ in range(2))
    await asyncio.gather(one.open(), other.open())
    assert await one.take("key", [PLACE]) is None
    client: Any = Redis.from_url(address)  # pyright: ignore
    await client.flushdb()
    await client.aclose()
    await one.renew()
    taken = [await other.take("key", [PLACE]) for _ in range(PLACES)]
    assert [unmet is None for unmet in taken] == [True, True, True, False]
    await asyncio.gather(one.close(), other.close())
