"""Mixed requests against a server process for minutes: does it leak memory, descriptors
or threads, or fall behind?

    python benchmarks/soak.py --minutes 20 --workers 2

Each minute it prints the resident memory of every process, and at the end the slope of
their sum in MB per hour.

The first fifth warms up: caches that are bounded fill. After that the resident memory,
the open descriptors, the threads and the lag of the event loop, measured from outside
as the time of `GET /health`, are sampled once a second. Drift is the median of the last
third of the samples against that of the first third. Exit status 1 where a bound is
exceeded or a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2

WARM_UP = 0.2
BOUNDS = {"memory": 0.05, "descriptors": 0.0, "threads": 0.0}
"""Relative growth that is allowed. Descriptors and threads get two more on top, for
what is in flight.
"""
SLACK = {"memory": 8 * 2**20, "descriptors": 2, "threads": 2}
LAG_P99 = 3.0
"""Times the delay of this script's own timers that `GET /health` may take at the 99th
percentile. Both wait for the same processors, on which the clients and other programs
run.
"""
SLACK_P99 = 0.25
"""Seconds that it may take in addition: a step of the model, and the way there and back."""
CLIENTS = 6
WORDS = (
    "the",
    "capital",
    "of",
    "Japan",
    "is",
    "Tokyo",
    "a",
    "list",
    "seven",
    "small",
    "colours",
    "names",
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Sample:
    memory: int
    descriptors: int
    threads: int
    lag: float
    own_lag: float


def find_processes(pid: int) -> list[int]:
    """Return a server and its workers, without what these run."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [pid, *map(int, children.split())]


def read_memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    return int(_read_status(pid)["VmRSS"].split()[0]) * 1024


def measure(pids: list[int], lag: float, own_lag: float) -> Sample:
    """Of processes under Linux, in total."""
    return Sample(
        sum(map(read_memory, pids)),
        sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        sum(int(_read_status(pid)["Threads"]) for pid in pids),
        lag,
        own_lag,
    )


def _read_status(pid: int) -> dict[str, str]:
    status = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":", 1) for line in status.splitlines())


class Client:
    """Sends one request after the other, of a kind drawn by chance."""

    def __init__(self, http: httpx2.AsyncClient, seed: int, counts: Counter[str]) -> None:
        self._http = http
        self._random = random.Random(seed)
        self._counts = counts
        self._kinds: list[tuple[str, Callable[[], Awaitable[httpx2.Response]]]] = [
            ("chat", self._chat),
            ("chat streamed", self._stream),
            ("schema", self._schema),
            ("completions", self._completions),
            ("messages", self._messages),
            ("responses", self._responses),
            ("tokenize", self._tokenize),
            ("wrong", self._wrong),
        ]

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            if self._random.random() < 0.05:
                await self._leave()
                continue
            kind, ask = self._random.choice(self._kinds)
            response = await ask()
            expected = 400 if kind == "wrong" else 200
            good = response.status_code == expected and "event: error" not in response.text
            self._counts[kind if good else f"FAILED {kind} {response.status_code}"] += 1

    def _text(self) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randrange(3, 120)))

    def _conversation(self) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": self._text()}], "max_tokens": 12}

    async def _chat(self) -> httpx2.Response:
        return await self._http.post("/v1/chat/completions", json=self._conversation())

    async def _stream(self) -> httpx2.Response:
        return await self._http.post(
            "/v1/chat/completions", json={**self._conversation(), "stream": True}
        )

    async def _schema(self) -> httpx2.Response:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        return await self._http.post(
            "/v1/chat/completions", json={**self._conversation(), "response_format": form}
        )

    async def _completions(self) -> httpx2.Response:
        return await self._http.post(
            "/v1/completions", json={"prompt": self._text(), "max_tokens": 8, "logprobs": 2}
        )

    async def _messages(self) -> httpx2.Response:
        return await self._http.post("/v1/messages", json={**self._conversation(), "model": "tiny"})

    async def _responses(self) -> httpx2.Response:
        """Stored, read and deleted, so that the store stays as it is."""
        response = await self._http.post(
            "/v1/responses", json={"input": self._text(), "max_output_tokens": 16}
        )
        if response.status_code != 200:
            return response
        path = f"/v1/responses/{response.json()['id']}"
        read = await self._http.get(path)
        await self._http.delete(path)
        return read

    async def _tokenize(self) -> httpx2.Response:
        return await self._http.post("/tokenize", json={"prompt": self._text()})

    async def _wrong(self) -> httpx2.Response:
        return await self._http.post("/v1/chat/completions", json={"messages": 7})

    async def _leave(self) -> None:
        """Disconnect in the middle of a stream."""
        body = {**self._conversation(), "stream": True, "max_tokens": 200}
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_bytes():
                break
        self._counts["left"] += 1


async def watch(http: httpx2.AsyncClient, pid: int, begin: float, until: float) -> list[Sample]:
    samples: list[Sample] = []
    pids = find_processes(pid)
    first = time.monotonic()
    minute = 0
    while time.monotonic() < until:
        due = time.monotonic() + 0.01
        await asyncio.sleep(0.01)
        started = time.monotonic()
        own_lag = started - due
        await http.get("/health")
        lag = time.monotonic() - started
        if started >= begin:
            samples.append(measure(pids, lag, own_lag))
        if started - first >= 60 * minute:
            memory = ", ".join(f"{read_memory(pid) / 1e6:.1f}" for pid in pids)
            print(f"minute {minute}: resident {memory} MB", flush=True)
            minute += 1
        await asyncio.sleep(1)
    return samples


def report(samples: list[Sample], counts: Counter[str]) -> list[str]:
    """Prints the figures; what exceeds its bound, in words."""
    third = max(1, len(samples) // 3)
    wrong = [f"{count} x {kind}" for kind, count in counts.items() if kind.startswith("FAILED")]
    print(json.dumps(dict(sorted(counts.items()))))
    for name, allowed in BOUNDS.items():
        first = statistics.median(getattr(sample, name) for sample in samples[:third])
        last = statistics.median(getattr(sample, name) for sample in samples[-third:])
        print(f"{name:12} {first:14,.0f} -> {last:14,.0f}  {(last - first) / first:+.1%}")
        if last > first * (1 + allowed) + SLACK[name]:
            wrong.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
    if len(samples) > 1:
        # One sample a second.
        fit = statistics.linear_regression(
            range(len(samples)), [sample.memory / 1e6 for sample in samples]
        )
        print(f"slope        {fit.slope * 3600:+.1f} MB per hour in all processes")
    lags = sorted(sample.lag for sample in samples)
    p99 = find_p99(lags)
    own_p99 = find_p99(sorted(sample.own_lag for sample in samples))
    drift = statistics.median(s.lag for s in samples[-third:]) / statistics.median(
        s.lag for s in samples[:third]
    )
    print(
        f"health       p50 {statistics.median(lags) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, "
        f"drift x{drift:.2f}; own timers p99 {own_p99 * 1000:.1f} ms"
    )
    if p99 > LAG_P99 * own_p99 + SLACK_P99:
        wrong.append(
            f"GET /health took {p99 * 1000:.0f} ms at the 99th percentile, own timers "
            f"{own_p99 * 1000:.0f} ms"
        )
    return wrong


def find_p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


async def soak(port: int, pid: int, minutes: float, clients: int) -> list[str]:
    counts: Counter[str] = Counter()
    begin = time.monotonic() + minutes * 60 * WARM_UP
    until = time.monotonic() + minutes * 60
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        running = asyncio.gather(
            *(Client(http, seed, counts).run(until) for seed in range(clients))
        )
        samples, _ = await asyncio.gather(watch(http, pid, begin, until), running)
    return report(samples, counts)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "dragoman",
            "serve",
            arguments.model,
            "--port",
            "0",
            "--log-level",
            "warning",
        ]
        command += [
            "--store",
            f"sqlite:{folder}/store.db",
            "--max-model-len",
            "1024",
            "--workers",
            str(arguments.workers),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                greeting = server.stdout.readline()
                port = int(greeting.rpartition(":")[2].split()[0])
                wrong = asyncio.run(soak(port, server.pid, arguments.minutes, arguments.clients))
            finally:
                server.terminate()
    for each in wrong:
        print(f"BOUND EXCEEDED: {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
