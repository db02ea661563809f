"""How a dead engine is replaced under load: `python benchmarks/engine_failure.py
[--streams 32] [--rounds 3]`.

Two faults while so many streams run: SIGKILL of the engine process, and steps that
raise from one moment on, as after a CUDA error. For each: streams that have neither
ended nor failed when the new process is ready (`hung`), failed steps until `/health` is
a 503, and seconds from the fault until a new process is ready, also as a multiple of a
plain start in the same round. Clients of the killed process are asked to retry by a 503
until then. For Linux and macOS.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
from installed import environment

SERVE = [sys.executable, "-m", "dragoman", "serve"]
OPTIONS = ["--port", "0", "--store", "none", "--no-access-log", "--api-profile", "vllm"]
KILLED = ["tiny", "--api-server-count", "1"]
RAISING = ["python:failing_engine:create"]
BODY = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 3000,
    "ignore_eos": True,
    "stream": True,
}
PATIENCE = 120.0


class Server(NamedTuple):
    """A running server. started_in: seconds until it was ready; log: its standard error."""

    url: str
    started_in: float
    log: Path


class Recovery(NamedTuple):
    """What a fault did. seconds: until the new process was ready."""

    num_hung: int
    num_errors: int
    num_failed_steps: int
    seconds: float


async def wait_for_health(client: httpx2.AsyncClient, status: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if (await client.get("/health")).status_code == status:
                    return
            except httpx2.TransportError:
                # A process that is being replaced may reset a connection.
                if status != 200:
                    return
            await asyncio.sleep(0.005)


@contextmanager
def run_server(arguments: list[str], env: dict[str, str], folder: Path) -> Generator[Server]:
    log = folder / "log"
    began = time.perf_counter()
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*SERVE, *arguments, *OPTIONS],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=env,
            text=True,
            cwd=Path(__file__).parent,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            found = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert found is not None, log.read_text()
            asyncio.run(_wait_until_ready(found[0]))
            yield Server(found[0], time.perf_counter() - began, log)
        finally:
            process.terminate()


async def _wait_until_ready(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url) as client:
        await wait_for_health(client, 200)


async def stream(client: httpx2.AsyncClient, begun: asyncio.Semaphore) -> bool:
    """Read a stream to its end. Returns whether it ended with an error."""
    is_error = False
    try:
        async with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            async for line in response.aiter_lines():
                if line:
                    begun.release()
                is_error |= '"error"' in line
    except httpx2.TransportError:
        return True
    return is_error


async def measure(
    server: Server, num_streams: int, fault: Callable[[], None], mend: Callable[[], int]
) -> Recovery:
    """Cause a fault under load, and wait for the new process.

    mend: called as soon as `/health` is a 503; returns the failed steps up to then.
    """
    limits = httpx2.Limits(max_connections=num_streams + 1)
    async with httpx2.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        begun = asyncio.Semaphore(0)
        streams = [asyncio.create_task(stream(client, begun)) for _ in range(num_streams)]
        for _ in range(4 * num_streams):
            await begun.acquire()
        began = time.perf_counter()
        fault()
        await wait_for_health(client, 503)
        num_failed_steps = mend()
        await wait_for_health(client, 200)
        seconds = time.perf_counter() - began
        _, hung = await asyncio.wait(streams, timeout=1)
        num_errors = sum(one.result() for one in streams if one not in hung)
        for one in hung:
            one.cancel()
        answer = await client.post(
            "/v1/chat/completions", json=BODY | {"max_tokens": 3, "stream": False}
        )
        assert answer.status_code == 200, answer.text
        return Recovery(len(hung), num_errors, num_failed_steps, seconds)


def kill(env: dict[str, str], num_streams: int) -> tuple[Recovery, float]:
    """Kill an engine process. Returns the seconds of a plain start too."""
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server(KILLED, env, Path(folder)) as server,
    ):
        pid = int(re.findall(r"engine is process (\d+)", server.log.read_text())[-1])
        found = asyncio.run(
            measure(server, num_streams, lambda: os.kill(pid, signal.SIGKILL), lambda: 0)
        )
        return found, server.started_in


def fail_steps(env: dict[str, str], num_streams: int) -> tuple[Recovery, float]:
    """Let all steps of a process raise. Returns the seconds of a plain start too."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "failure"

        def mend() -> int:
            count = len(file.read_text().splitlines())
            file.rename(file.with_suffix(".past"))
            return count

        env = env | {"FAILURE": str(file), "PYTHONPATH": str(Path(__file__).parent)}
        with run_server(RAISING, env, Path(folder)) as server:
            return asyncio.run(measure(server, num_streams, file.touch, mend)), server.started_in


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    faults = {"engine process killed": kill, "steps that raise": fail_steps}
    print(f"{'':>22} {'hung':>5} {'errors':>7} {'failed steps':>13} {'s':>6} {'of a start':>11}")
    with environment() as env:
        for number in range(arguments.rounds + 1):
            for name, cause in faults.items():
                found, start = cause(env, arguments.streams)
                # The first round compiles what the others import.
                if number:
                    print(
                        f"{name:>22} {found.num_hung:5} {found.num_errors:7} "
                        f"{found.num_failed_steps:13} {found.seconds:6.2f} "
                        f"{found.seconds / start:11.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
