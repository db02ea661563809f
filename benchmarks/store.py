"""The cost of storing: commits a second, their latency, and how long the event loop
waits meanwhile.

    python benchmarks/store.py [--seconds 2] [--clients 32] [--bytes 4000] [--postgres
    DSN]

Each store is asked by so many clients at once, each of which puts a record and appends
two entries to it in one commit, again and again. The memory store in the same run is
the baseline: what the machine and the event loop cost.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from dragoman.store import Append, Item, Key, MemoryStore, Put, SqliteStore, Store

TICK = 0.001


async def client(store: Store, name: str, body: bytes, until: float, took: list[float]) -> None:
    number = 0
    while time.perf_counter() < until:
        key = Key("bench", "response", f"{name}-{number}")
        began = time.perf_counter()
        await store.commit(
            Put(key, 0, body), Append(key, "items", (Item(b"{}", "a"), Item(b"{}", "b")))
        )
        took.append(time.perf_counter() - began)
        number += 1
        # The memory store never waits; without this the others would never get a turn.
        await asyncio.sleep(0)


async def lag(until: float, late: list[float]) -> None:
    """How much later than requested a sleep ends."""
    while time.perf_counter() < until:
        began = time.perf_counter()
        await asyncio.sleep(TICK)
        late.append(time.perf_counter() - began - TICK)


async def measure(name: str, store: Store, clients: int, size: int, seconds: float) -> float:
    await store.open()
    took: list[float] = []
    late: list[float] = []
    until = time.perf_counter() + seconds
    body = b"x" * size
    async with asyncio.TaskGroup() as group:
        group.create_task(lag(until, late))
        for number in range(clients):
            group.create_task(client(store, f"{name}-{number}", body, until, took))
    await store.close()
    rate = len(took) / seconds
    cells = [f"{1000 * at(took, share):8.2f}" for share in (0.5, 0.99)] + [
        f"{1000 * at(late, 0.99):8.2f}"
    ]
    print(f"{name:<24}{clients:>8}{rate:>12.0f}  {'  '.join(cells)}")
    return rate


def at(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] if times else float("nan")


async def run(options: argparse.Namespace, directory: Path) -> None:
    print(
        f"{'store':<24}{'clients':>8}{'commits/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'loop p99':>10}"
    )
    for clients in (1, options.clients):
        stores: list[tuple[str, Store]] = [
            ("memory", MemoryStore()),
            ("sqlite FULL", SqliteStore(directory / f"full{clients}.db", synchronous="FULL")),
            ("sqlite NORMAL", SqliteStore(directory / f"normal{clients}.db", synchronous="NORMAL")),
        ]
        if options.postgres:
            from dragoman.store.postgres import PostgresStore

            stores.append(("postgresql", PostgresStore(options.postgres)))
        rates = [
            await measure(f"{name}", store, clients, options.bytes, options.seconds)
            for name, store in stores
        ]
        print(f"  of memory: {', '.join(f'{rate / rates[0]:.3f}' for rate in rates[1:])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--bytes", type=int, default=4000)
    parser.add_argument("--postgres", metavar="DSN")
    with tempfile.TemporaryDirectory(dir=Path.home()) as temporary:
        asyncio.run(run(parser.parse_args(), Path(temporary)))
