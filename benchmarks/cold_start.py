"""From a cold start to the first token: `python benchmarks/cold_start.py [--rounds 5]`.

Seconds from starting `dragoman serve` to the first streamed token of the embedded model, beside what Python takes to
import numpy and Starlette and nothing else; and the seconds of `dragoman --help`.
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

SERVE = [sys.executable, "-m", "dragoman", "serve", "--port", "0", "--no-access-log", "--log-level", "error"]
BARE = [sys.executable, "-c", "import numpy, starlette.applications, uvicorn"]
HELP = [sys.executable, "-m", "dragoman", "--help"]


def first_token() -> float:
    began = time.perf_counter()
    with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+:(\d+)", server.stdout.readline())
        assert found is not None
        stream(f"http://127.0.0.1:{found[1]}/v1/chat/completions")
        spent = time.perf_counter() - began
        server.terminate()
    return spent


def stream(url: str) -> None:
    """Returns when the first token has come."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "stream": True}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                next(line for line in answer if b'"content":"' in line and b'"content":""' not in line)
                return
        except urllib.error.URLError:
            time.sleep(0.005)


def run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = range(parser.parse_args().rounds)
    bare = min(run(BARE) for _ in rounds)
    token = min(first_token() for _ in rounds)
    print(f"imports alone   {bare:6.2f} s")
    print(f"first token     {token:6.2f} s   {token / bare:.1f} times")
    print(f"dragoman --help {min(run(HELP) for _ in rounds):6.2f} s")


if __name__ == "__main__":
    main()
