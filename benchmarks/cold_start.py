"""From a cold start to the first answer: `python benchmarks/cold_start.py [--rounds 5]`.

Seconds, and seconds of CPU until the process ends, of `dragoman serve` to the first
streamed token of the embedded model, of `serve sim` and `serve scripted` until they are
ready, of an answer by `dragoman run tiny`, and of commands that serve nothing; each also
as a multiple of what Python takes to import numpy, Starlette and uvicorn and nothing
else: of the least, and from the lowest to the highest of the rounds, each against the
imports of the same round. All with byte code that is compiled already, as an installation has it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from installed import environment

DRAGOMAN = [sys.executable, "-m", "dragoman"]
SERVE = [*DRAGOMAN, "serve"]
OPTIONS = ["--port", "0", "--no-access-log", "--log-level", "error"]
BARE = [sys.executable, "-c", "import numpy, starlette.applications, uvicorn"]


class Cost(NamedTuple):
    """What a start costs, in seconds. wall: until the goal; cpu: of the whole process."""

    wall: float
    cpu: float


def measure_server(command: list[str], env: dict[str, str], wait: Callable[[str], None]) -> Cost:
    """Start a server and wait for it. wait: gets its address."""
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, *OPTIONS], stdout=subprocess.PIPE, text=True, env=env
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+:(\d+)", server.stdout.readline())
        assert found is not None
        wait(f"http://127.0.0.1:{found[1]}")
        wall = time.perf_counter() - began
        server.terminate()
        return Cost(wall, wait_for_end(server))


def measure_command(command: list[str], env: dict[str, str]) -> Cost:
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
    ) as process:
        cpu = wait_for_end(process)
        return Cost(time.perf_counter() - began, cpu)


def wait_for_end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> float:
    """Wait for a process, and return the seconds of CPU that it has used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def read_first_token(address: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "stream": True}).encode()
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        next(line for line in answer if b'"content":"' in line and b'"content":""' not in line)


def wait_until_healthy(address: str) -> None:
    while True:
        try:
            urllib.request.urlopen(f"{address}/health").close()
        except urllib.error.HTTPError:
            time.sleep(0.002)
        else:
            return


def format_range(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="Write the figures to a file.")
    arguments = parser.parse_args()
    with environment() as env:
        servers: dict[str, tuple[list[str], Callable[[str], None]]] = {
            "first token of tiny": ([], read_first_token),
            "serve sim is ready": (["sim", "--store", "none"], wait_until_healthy),
            "serve scripted is ready": (["scripted", "--store", "none"], wait_until_healthy),
        }
        commands = {
            "run tiny": ["run", "tiny", "Hello", "--max-tokens", "8"],
            "check --list": ["check", "--list"],
            "serve --help": ["serve", "--help"],
            "--help": ["--help"],
            "--version": ["--version"],
        }
        measures: dict[str, Callable[[], Cost]] = {
            "imports alone": lambda: measure_command(BARE, env)
        }
        for name, (words, wait) in servers.items():
            measures[name] = lambda words=words, wait=wait: measure_server(
                [*SERVE, *words], env, wait
            )
        for name, words in commands.items():
            measures[name] = lambda words=words: measure_command([*DRAGOMAN, *words], env)
        for measure in measures.values():
            measure()  # compiles
        # In turns, so that the load of the machine is the same for all.
        costs: dict[str, list[Cost]] = {name: [] for name in measures}
        for _ in range(arguments.rounds):
            for name, measure in measures.items():
                costs[name].append(measure())
    best = {
        name: Cost(min(cost.wall for cost in each), min(cost.cpu for cost in each))
        for name, each in costs.items()
    }
    bare = best["imports alone"]
    print(f"{'':24}{'seconds':>8}{'times':>7}{'from-to':>11}{'CPU':>8}{'times':>7}{'from-to':>11}")
    for name, cost in best.items():
        rounds = list(zip(costs[name], costs["imports alone"], strict=True))
        walls = format_range([each.wall / imports.wall for each, imports in rounds])
        cpus = format_range([each.cpu / imports.cpu for each, imports in rounds])
        print(
            f"{name:24}{cost.wall:8.2f}{cost.wall / bare.wall:7.2f}{walls:>11}"
            f"{cost.cpu:8.2f}{cost.cpu / bare.cpu:7.2f}{cpus:>11}"
        )
    if arguments.json is not None:
        rows = {name: cost._asdict() for name, cost in best.items()}
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
