"""From a cold start to the first token: `python benchmarks/cold_start.py [--rounds 5]`.

Seconds from starting `dragoman serve` to the first streamed token of the embedded
model, and from starting `dragoman serve sim` until it is ready; beside what Python
takes to import numpy and Starlette and nothing else; and the seconds of `dragoman
--help`. All with byte code that is compiled already, as an installation has it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from installed import environment

SERVE = [sys.executable, "-m", "dragoman", "serve"]
OPTIONS = ["--port", "0", "--no-access-log", "--log-level", "error"]
BARE = [sys.executable, "-c", "import numpy, starlette.applications, uvicorn"]
HELP = [sys.executable, "-m", "dragoman", "--help"]


def started(command: list[str], env: dict[str, str], ready: Callable[[str], None]) -> float:
    """Waits until it is ready, given the server's address."""
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, *OPTIONS], stdout=subprocess.PIPE, text=True, env=env
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+:(\d+)", server.stdout.readline())
        assert found is not None
        ready(f"http://127.0.0.1:{found[1]}")
        spent = time.perf_counter() - began
        server.terminate()
    return spent


def first_token(address: str) -> None:
    """Returns when it has come."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "stream": True}).encode()
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        next(line for line in answer if b'"content":"' in line and b'"content":""' not in line)


def health(address: str) -> None:
    """Returns when it is well."""
    while True:
        try:
            urllib.request.urlopen(f"{address}/health").close()
        except urllib.error.HTTPError:
            time.sleep(0.002)
        else:
            return


def run(command: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with environment() as env:
        timed: dict[str, Callable[[], float]] = {
            "imports alone": lambda: run(BARE, env),
            "first token": lambda: started(SERVE, env, first_token),
            "sim is ready": lambda: started([*SERVE, "sim", "--store", "none"], env, health),
            "dragoman --help": lambda: run(HELP, env),
        }
        for time_it in timed.values():
            time_it()  # compiles
        seconds = {name: min(time_it() for _ in range(rounds)) for name, time_it in timed.items()}
    for name, spent in seconds.items():
        print(f"{name:16}{spent:6.2f} s   {spent / seconds['imports alone']:.1f} times")


if __name__ == "__main__":
    main()
