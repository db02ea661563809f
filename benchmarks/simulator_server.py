"""The simulator on the real clock: does it keep the time that it models, and what does
a token cost?

    python benchmarks/simulator_server.py [--streams 512] [--tokens 200] [--step 0.02]

A server of its own process, on a profile whose every step takes the same time, and one
client with that many streams. Printed: the mean interval between tokens as a share of
the modelled, the server's CPU a token, its memory a stream; and the same of a bare ASGI
app, which writes a constant chunk to every stream each step, by uvicorn's own protocol
and by ours. All share the machine with the client, so that a busy one shows in the
figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from installed import environment

PROFILE = """
name: steady
hardware: {{name: none}}
model: {{name: none}}
engine:
  max_num_seqs: 1024
  max_num_batched_tokens: 65536
  num_gpu_blocks: 65536
  max_model_len: 4096
latency: {{base: {step}}}
frontend_seconds: 0.0
"""


async def stream(port: int, tokens: int) -> list[float]:
    """When each piece of the answer came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {"prompt": "Hello", "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": 1}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    times: list[float] = []
    while True:
        line = await reader.readline()
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
        elif line.startswith(b"data: [DONE]") or not line:
            writer.close()
            return times


def usage(process: int) -> tuple[float, int]:
    """Seconds of CPU, and bytes of memory."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


SIMULATOR = [
    sys.executable,
    "-m",
    "dragoman",
    "serve",
    "sim",
    "--port",
    "0",
    "--no-access-log",
    "--store",
    "none",
]
BARE = """
import socket, sys, uvicorn
from dragoman.http.server_connection import Http11ProtocolFactory
from streaming import bare
listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
http = Http11ProtocolFactory() if sys.argv[3] == "ours" else "httptools"
app = bare(int(sys.argv[1]), float(sys.argv[2]))
config = uvicorn.Config(app, http=http, log_level="error", access_log=False, proxy_headers=False)
uvicorn.Server(config).run(sockets=[listener])
"""


@contextmanager
def server(command: list[str]) -> Generator[tuple[int, int]]:
    """Its process and its port."""
    here = Path(__file__).parent
    with (
        environment() as env,
        subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True, cwd=here) as process,
    ):
        assert process.stdout is not None
        found = re.search(r"http://\S+:(\d+)", process.stdout.readline())
        assert found is not None
        try:
            yield process.pid, int(found[1])
        finally:
            process.terminate()


async def measure(name: str, streams: int, tokens: int, step: float, command: list[str]) -> None:
    with server(command) as (process, port):
        await stream(port, 5)
        cpu, memory = usage(process)
        tasks = [asyncio.create_task(stream(port, tokens)) for _ in range(streams)]
        await asyncio.sleep(tokens * step / 2)
        peak = usage(process)[1]
        answers = await asyncio.gather(*tasks)
        spent = usage(process)[0] - cpu
    means = [(times[-1] - times[0]) / (len(times) - 1) for times in answers]
    count = sum(map(len, answers))
    print(
        f"{name:14}{statistics.mean(means) / step:14.4f}{spent / count * 1e6:14.1f}"
        f"{(peak - memory) / streams / 1024:16.1f}"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step", type=float, default=0.02)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "steady.yaml"
        profile.write_text(PROFILE.format(step=args.step))
        load = os.getloadavg()[0]
        print(
            f"{args.streams} streams of {args.tokens} tokens at {args.step * 1000:.0f} ms; load "
            f"{load:.1f}"
        )
        print(f"{'':14}{'mean interval':>14}{'us a token':>14}{'KB a stream':>16}")
        for name, command in {
            "bare uvicorn": [
                sys.executable,
                "-c",
                BARE,
                str(args.tokens),
                str(args.step),
                "uvicorn",
            ],
            "bare ours": [sys.executable, "-c", BARE, str(args.tokens), str(args.step), "ours"],
            "simulator": [*SIMULATOR, "--profile", str(profile)],
        }.items():
            await measure(name, args.streams, args.tokens, args.step, command)


if __name__ == "__main__":
    asyncio.run(main())
