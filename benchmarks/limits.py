"""What shared limits cost a request, and what a greedy key costs the others: `python -m
benchmarks.limits`.

The latency of `take` in each store that is installed (a PostgreSQL and a Redis or
Valkey are started), one request at a time and 32 at once, beside that of counters in
the process. Then the figures of `packages/dragoman/tests/serving/test_greedy_key.py`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from dragoman.launch.limits_store import build_limits_store
from dragoman.settings import Settings
from dragoman.tenants import Counters, LocalCounters
from dragoman.tenants.counters import Demand
from dragoman.tenants.shared_counters import SharedCounters

# `tests` lies in the checkout and in each package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("packages/*")))

from tests.serving import test_greedy_key
from tests.store.cluster import cluster, programs
from tests.tenants.backends import find_redis_server, redis_server

DEMANDS = (
    Demand("requests", 10**9),
    Demand("tokens", 10**12, amount=200, needed=200),
    Demand("concurrency", 10**6, 0),
)
TAKES = 2000
CLIENTS = 32


@contextmanager
def list_stores() -> Iterator[list[str]]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        addresses = ["memory", f"sqlite:{Path(folder) / 'limits.db'}"]
        if (found := programs()) is not None:
            addresses.append(stack.enter_context(cluster(found)))
        if (program := find_redis_server()) is not None and importlib.util.find_spec(
            "redis"
        ) is not None:
            addresses.append(stack.enter_context(redis_server(program)))
        yield addresses


async def measure(address: str) -> None:
    store = build_limits_store(Settings(limits_store=address, keys_file="keys"), {})
    counters: Counters = (
        LocalCounters(time.monotonic) if store is None else SharedCounters(store, time.monotonic)
    )
    await counters.open()
    alone = await take(counters, TAKES)
    start = time.perf_counter()
    latencies = await asyncio.gather(*(take(counters, TAKES // CLIENTS) for _ in range(CLIENTS)))
    elapsed = time.perf_counter() - start
    together = sorted(latency for each in latencies for latency in each)
    await counters.close()
    name = "redis" if address.startswith("unix:") else address.partition(":")[0]
    print(
        f"{name:12} one at a time: p50 {median(alone) * 1e3:.3f} ms, p99 "
        f"{sorted(alone)[-TAKES // 100] * 1e3:.3f}; "
        f"{CLIENTS} at once: {len(together) / elapsed:.0f}/s, p50 {median(together) * 1e3:.3f} ms"
    )


async def take(counters: Counters, number: int) -> list[float]:
    latencies: list[float] = []
    for _ in range(number):
        start = time.perf_counter()
        unmet = await counters.take("key", DEMANDS)
        latencies.append(time.perf_counter() - start)
        if unmet is not None:
            raise RuntimeError(f"rejected: {unmet}")
    return latencies


def main() -> None:
    with list_stores() as addresses:
        for address in addresses:
            asyncio.run(measure(address))
    test_greedy_key.main()


if __name__ == "__main__":
    main()
