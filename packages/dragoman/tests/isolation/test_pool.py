"""Worker processes: their limits, and cleanup. The functions that run in them are
tested elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Generator

import pytest

from dragoman.core.errors import EngineError, Overloaded
from dragoman.isolation.worker_pool import LimitExceeded, WorkerLimits, WorkerPool

MODULE = "tests.isolation.echo"
MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes import MODULE."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
def pool() -> Generator[WorkerPool]:
    # A busy machine may give a process its little time late.
    limits = WorkerLimits(seconds=0.2, memory=64 * MIB, processes=2, clock_factor=1e6)
    workers = WorkerPool(MODULE, limits, lambda: b"setup:")
    yield workers
    workers.close()


async def test_worker_pool_reuses_process(pool: WorkerPool) -> None:
    assert await pool.run(b"one") == b"setup:one"
    first = pool.pids
    assert await pool.run(b"x" * MIB) == b"setup:" + b"x" * MIB
    assert pool.pids == first
    pool.close()
    assert pool.pids == []
    assert await pool.run(b"two") == b"setup:two"


async def test_worker_pool_cpu_time_limit_kills_process() -> None:
    pool = WorkerPool(MODULE, WorkerLimits(seconds=0.1, clock_factor=1e6))
    with pytest.raises(LimitExceeded, match="time"):
        await pool.run(b"spin")
    assert pool.pids == []


async def test_worker_pool_wall_time_limit_kills_process() -> None:
    pool = WorkerPool(MODULE, WorkerLimits(seconds=0.1, clock_factor=1))
    with pytest.raises(LimitExceeded, match="time"):
        await pool.run(b"pause")
    assert pool.pids == []


async def test_worker_pool_time_limit_applies_per_call(pool: WorkerPool) -> None:
    for number in range(3):
        assert await pool.run(b"x%d" % number)


async def test_worker_pool_memory_limit_rejects_call(pool: WorkerPool) -> None:
    assert await pool.run(b"allocate %d" % (16 * MIB))
    with pytest.raises(LimitExceeded, match="memory"):
        await pool.run(b"allocate %d" % (100 * MIB))
    assert await pool.run(b"one") == b"setup:one"


async def test_worker_pool_cancelled_call_kills_process() -> None:
    pool = WorkerPool(MODULE, WorkerLimits(seconds=600.0))
    call = asyncio.create_task(pool.run(b"spin"))
    async with asyncio.timeout(60):
        while not pool.pids:  # noqa: ASYNC110 - it happens in a thread
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        while pool.pids:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_worker_pool_exception_is_logged(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(EngineError, match="worker process failed"):
        await pool.run(b"fail")
    assert "ValueError: as told" in caplog.text
    assert await pool.run(b"one") == b"setup:one"


async def test_worker_pool_exited_process_is_replaced(pool: WorkerPool) -> None:
    with pytest.raises(EngineError, match="ended unexpectedly"):
        await pool.run(b"exit")
    assert await pool.run(b"one") == b"setup:one"


async def test_worker_pool_process_count_is_bounded(pool: WorkerPool) -> None:
    calls = [asyncio.create_task(pool.run(b"%d" % number)) for number in range(20)]
    assert await asyncio.gather(*calls) == [b"setup:%d" % number for number in range(20)]
    assert 1 <= len(pool.pids) <= 2


async def run_in_order(pool: WorkerPool, *calls: tuple[str, str]) -> list[str]:
    """Run calls of (owner, text) at once; return their texts in the order of the ends."""
    ended: list[str] = []

    async def run(owner: str, text: str) -> None:
        await pool.run(text.encode(), owner)
        ended.append(text)

    await asyncio.gather(*(run(*call) for call in calls))
    return ended


async def test_worker_pool_serves_owners_in_turn() -> None:
    pool = WorkerPool(MODULE, WorkerLimits(processes=1))
    flood = [("b", f"b{number}") for number in range(60)]
    ended = await run_in_order(pool, *flood, ("a", "a0"), ("c", "b59"))
    assert ended.index("a0") == 1
    # A call of b that c waits for as well runs in c's turn.
    assert ended.index("b59") == 2
    pool.close()


async def test_worker_pool_equal_call_at_end_takes_no_place() -> None:
    limits = WorkerLimits(processes=1)
    pool = WorkerPool(MODULE, limits, lambda: b"")
    calls: list[asyncio.Task[bytes]] = []
    first = asyncio.create_task(pool.run(b"one", owner="a"))
    # One of them begins in the turn of the loop in which the run has ended.
    while not first.done():
        calls.append(asyncio.create_task(pool.run(b"one", owner="b")))
        await asyncio.sleep(0)
    assert set(await asyncio.gather(first, *calls)) == {b"one"}
    async with asyncio.timeout(60):
        assert await pool.run(b"two", owner="c") == b"two"
    pool.close()


@pytest.mark.parametrize(("owner", "n_accepted"), [("", 16), ("b", 8)])
async def test_worker_pool_queue_leaves_space_for_others(owner: str, n_accepted: int) -> None:
    pool = WorkerPool(MODULE, WorkerLimits(seconds=600.0, processes=1, queued=15))
    flood = [asyncio.create_task(pool.run(b"spin %d" % n, owner)) for n in range(40)]
    await asyncio.sleep(0)
    refused = [call for call in flood if call.done()]
    assert len(flood) - len(refused) == n_accepted
    for call in refused:
        with pytest.raises(Overloaded):
            await call
    other = asyncio.create_task(pool.run(b"x", "a"))
    await asyncio.sleep(0)
    assert other.done() is (owner == "")
    pool.close()
    await asyncio.gather(*flood, other, return_exceptions=True)


async def test_worker_pool_environment_excludes_server_keys(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", "secret")
    monkeypatch.setenv("OTHER", "value")
    assert await pool.run(b"environment DRAGOMAN_API_KEY") == b""
    assert await pool.run(b"environment OTHER") == b"value"


async def test_worker_pool_missing_module_raises_engine_error() -> None:
    pool = WorkerPool("tests.isolation.absent")
    with pytest.raises(EngineError, match="ended unexpectedly"):
        await pool.run(b"x")
    pool.close()
