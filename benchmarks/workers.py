"""Requests per second and CPU with one worker and with several, as ratios to one
process in the same round.

    python benchmarks/workers.py [--workers 1,2] [--requests 400] [--streams 64]
    [--tokens 200] [--rounds 3]

`serve scripted` answers short requests, one after the other on each of 32 connections;
`serve sim` streams. The client is a process of its own and shares the cores with the
workers: on a machine whose cores are all busy, requests per second cannot grow with the
workers. CPU a request can: workers that do not cost each other anything keep it
constant. It is user and system time of all processes of the server, from /proc, so for
Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from installed import environment
from overhead import (
    CHAT,
    OPTIONS,
    PROFILE,
    SERVE,
    Load,
    build_chat,
    read_usage,
    run_server,
    send_all,
)

CONNECTIONS = 32
STEP = 0.02
"""Seconds of a step of the simulated engine: an interval between two tokens."""


@dataclass(frozen=True)
class Figures:
    """Of one server in one round. cpu_request, cpu_token: microseconds."""

    requests_per_second: float
    cpu_request: float
    cpu_token: float


def read_cpu(process: int) -> float:
    """Seconds of CPU of a process and its children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sum(read_usage(int(item))[0] for item in (process, *children))


def measure(
    model: str, workers: int, load: Load, folder: Path, env: dict[str, str]
) -> tuple[float, float]:
    """Seconds, and seconds of CPU, of a load."""
    profile = folder / "steady.yaml"
    profile.write_text(PROFILE.format(step=STEP))
    command = [
        *SERVE,
        model,
        *OPTIONS,
        "--store",
        "none",
        "--workers",
        str(workers),
        "--log-level",
        "warning",
    ]
    command += ["--profile", str(profile)] if model == "sim" else []
    with run_server(command, env) as (process, port):
        # Warm: every worker has imported what it needs.
        asyncio.run(
            send_all(port, Load(16 * workers, 3, load.path, load.body, load.tokens, load.streamed))
        )
        cpu = read_cpu(process)
        started_at = time.perf_counter()
        asyncio.run(send_all(port, load))
        return time.perf_counter() - started_at, read_cpu(process) - cpu


def run_round(
    workers: int, requests: int, streams: int, tokens: int, folder: Path, env: dict[str, str]
) -> Figures:
    short = Load(CONNECTIONS, requests, CHAT, build_chat(2, stream=False), 2, streamed=False)
    streamed = Load(streams, 1, CHAT, build_chat(tokens, stream=True), tokens, streamed=True)
    seconds, cpu = measure("scripted", workers, short, folder, env)
    _, cpu_streams = measure("sim", workers, streamed, folder, env)
    n_requests = CONNECTIONS * requests
    return Figures(
        n_requests / seconds, cpu / n_requests * 1e6, cpu_streams / (streams * tokens) * 1e6
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", default="1,2", help="numbers of workers, the first is the baseline"
    )
    parser.add_argument("--requests", type=int, default=400, help="of each connection")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    counts = [int(text) for text in arguments.workers.split(",")]
    ratios: dict[int, list[Figures]] = {count: [] for count in counts}
    print(f"{'workers':>8}{'requests/s':>12}{'us/request':>12}{'us/token':>10}{'ratios':>18}")
    with tempfile.TemporaryDirectory() as name, environment() as env:
        for _ in range(arguments.rounds):
            baseline: Figures | None = None
            for count in counts:
                found = run_round(
                    count, arguments.requests, arguments.streams, arguments.tokens, Path(name), env
                )
                baseline = baseline or found
                ratio = Figures(
                    found.requests_per_second / baseline.requests_per_second,
                    found.cpu_request / baseline.cpu_request,
                    found.cpu_token / baseline.cpu_token,
                )
                ratios[count].append(ratio)
                print(
                    f"{count:8}{found.requests_per_second:12.0f}{found.cpu_request:12.0f}{found.cpu_token:10.1f}"
                    f"{ratio.requests_per_second:8.2f}{ratio.cpu_request:5.2f}{ratio.cpu_token:5.2f}",
                    flush=True,
                )
    for count, found in ratios.items():
        rate, cpu_request, cpu_token = (
            statistics.median(getattr(item, name) for item in found)
            for name in ("requests_per_second", "cpu_request", "cpu_token")
        )
        print(
            f"{count} workers, median of the ratios: {rate:.2f} requests/s, {cpu_request:.2f} CPU "
            f"a request, "
            f"{cpu_token:.2f} CPU a token"
        )


if __name__ == "__main__":
    main()
