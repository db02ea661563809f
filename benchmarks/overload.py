"""A server at ten times its capacity, and the latency of other requests while it reads
a megabyte.

    python benchmarks/overload.py [--model sim] [--seconds 10] [--times 10] [--pin]

Goodput is answers of 200 a second, once with as many clients as there are places in the
engine (the peak), once with requests that come at `times` that rate whether or not they
are answered. Beside it: how long a refusal takes, how many bytes the server has, and
how long /health takes while prompts of a megabyte are tokenised, against an idle
server. Client and server share the machine: on few cores the client's own work is in
every figure. `--pin` gives the client the last core and the server the others (Linux).
How late the client itself sent its requests is told beside the refusals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streaming import request

PLACES = 16
WAITING = 16
TOKENS = 32
SERVER_CORES: set[int] = set()


class Load:
    """What became of the requests so far."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.body = json.dumps(
            {
                "messages": [{"role": "user", "content": "Tell me a story."}],
                "max_tokens": TOKENS,
                "ignore_eos": True,
            }
        ).encode()
        self.answered = 0
        self.refused: list[float] = []
        self.lags: list[float] = []
        self.others: list[str] = []

    async def ask(self) -> None:
        began = time.perf_counter()
        response = await request(self._port, "POST", "/v1/chat/completions", self.body)
        match response[9:12]:
            case b"200":
                self.answered += 1
            case b"503" if b"retry-after: 1" in response.lower():
                self.refused.append(time.perf_counter() - began)
            case _:
                self.others.append(response[:80].decode("latin-1"))


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[int, int]]:
    """A server's port and process."""
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        *arguments,
        "--port",
        "0",
        "--store",
        "none",
    ]
    with subprocess.Popen(
        [*command, "--no-access-log"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if SERVER_CORES:
            os.sched_setaffinity(process.pid, SERVER_CORES)
        try:
            yield int(process.stdout.readline().partition("127.0.0.1:")[2].split()[0]), process.pid
        finally:
            process.kill()


def resident(pid: int) -> float:
    """MB, on Linux; elsewhere 0."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


async def peak(load: Load, seconds: float) -> float:
    """Answers a second where every place is always taken."""
    until = time.perf_counter() + seconds

    async def client() -> None:
        while time.perf_counter() < until:
            await load.ask()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(PLACES)))
    return load.answered / (time.perf_counter() - began)


async def flood(load: Load, rate: float, seconds: float) -> float:
    """The same where requests come at this rate. What is answered after the last has
    come does not count.
    """
    began = time.perf_counter()
    requests: set[asyncio.Task[None]] = set()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        load.lags.append(time.perf_counter() - due)
        task = asyncio.create_task(load.ask())
        requests.add(task)
        task.add_done_callback(requests.discard)
    goodput = load.answered / (time.perf_counter() - began)
    await asyncio.gather(*requests)
    return goodput


def percentile(values: list[float], part: float) -> float:
    """In milliseconds."""
    ordered = sorted(values)
    return (
        1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")
    )


async def overload(model: str, seconds: float, times: float) -> None:
    arguments = (model, "--max-num-seqs", str(PLACES), "--max-queued-requests", str(WAITING))
    with serving(*arguments) as (port, pid):
        await peak(Load(port), 2.0)
        most = await peak(Load(port), seconds)
        before = resident(pid)
        load = Load(port)
        # What is in the engine at the beginning ends in the first second, and what is
        # at the end does not: even.
        goodput = await flood(load, times * most, seconds)
        after = resident(pid)
        again = Load(port)
        await flood(again, times * most, seconds)
        print(f"peak       {most:8.1f} answers/s with {PLACES} clients")
        print(
            f"overload   {goodput:8.1f} answers/s at {times * most:.0f} requests/s: "
            f"{goodput / most:.2f} of the peak"
        )
        latency = (
            f"p50 {percentile(load.refused, 0.5):.1f} ms, p99 "
            f"{percentile(load.refused, 0.99):.1f} ms"
        )
        print(
            f"refused    {len(load.refused):8} with Retry-After, {latency}; anything else: "
            f"{load.others[:3] or 'none'}"
        )
        lag = f"p50 {percentile(load.lags, 0.5):.1f} ms, p99 {percentile(load.lags, 0.99):.1f} ms"
        print(f"client     {len(load.lags):8} requests sent, {lag} after their time")
        print(
            f"memory     {before:8.1f} MB before, {after:.1f} after, {resident(pid):.1f} after as "
            f"much again"
        )


async def pings(port: int, until: asyncio.Task[None] | None, seconds: float) -> list[float]:
    """How long the event loop took to answer the simplest request, again and again."""
    took: list[float] = []
    began = time.perf_counter()
    while not until.done() if until is not None else time.perf_counter() < began + seconds:
        at = time.perf_counter()
        await request(port, "GET", "/health")
        took.append(time.perf_counter() - at)
        await asyncio.sleep(0.005)
    return took


async def megabyte(seconds: float) -> None:
    prompt = "The weather in Oslo is fine today. " * 29_000
    body = json.dumps({"messages": [{"role": "user", "content": prompt}]}).encode()
    with serving("tiny") as (port, _):
        idle = await pings(port, None, seconds / 2)

        async def ask() -> None:
            for _ in range(5):
                response = await request(port, "POST", "/tokenize", body)
                assert response[9:12] == b"200", response[:300]

        busy = await pings(port, asyncio.create_task(ask()), seconds)
        for name, took in (("idle", idle), ("1 MB", busy)):
            latency = f"p50 {percentile(took, 0.5):.1f} ms, p99 {percentile(took, 0.99):.1f} ms"
            print(f"{name:10} /health {latency}, asked {len(took)} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="sim")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--pin", action="store_true")
    options = parser.parse_args()
    if options.pin:
        *others, last = sorted(os.sched_getaffinity(0))
        SERVER_CORES.update(others)
        os.sched_setaffinity(0, {last})
    asyncio.run(overload(options.model, options.seconds, options.times))
    asyncio.run(megabyte(options.seconds))


if __name__ == "__main__":
    main()
