"""The simulator on the real clock: does it keep the time that it models, and what does a token cost?

    python benchmarks/simulator_server.py [--streams 512] [--tokens 200] [--step 0.02]

A server of its own process, on a profile whose every step takes the same time, and one client with that many streams.
Printed: the mean interval between tokens as a share of the modelled, the time until the server is ready, its CPU a
token and its memory a stream. Both share the machine, so that a busy one shows in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PORT = 18573
PROFILE = """
name: steady
hardware: {{name: none}}
model: {{name: none}}
engine: {{max_num_seqs: 1024, max_num_batched_tokens: 65536, num_gpu_blocks: 65536, max_model_len: 4096}}
latency: {{base: {step}}}
frontend_seconds: 0.0
"""


async def stream(tokens: int) -> list[float]:
    """When each piece of the answer came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    body = json.dumps({"prompt": "Hello", "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": 1}).encode()
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


def serve(profile: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dragoman", "serve", "sim", "--profile", profile, "--port", str(PORT)]
    return subprocess.Popen([*command, "--no-access-log", "--store", "none"], stdout=subprocess.DEVNULL)


async def listening() -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", PORT)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


async def measure(streams: int, tokens: int, step: float, process: int) -> None:
    await stream(5)
    cpu, memory = usage(process)
    tasks = [asyncio.create_task(stream(tokens)) for _ in range(streams)]
    await asyncio.sleep(tokens * step / 2)
    peak = usage(process)[1]
    answers = await asyncio.gather(*tasks)
    spent = usage(process)[0] - cpu
    means = [(times[-1] - times[0]) / (len(times) - 1) for times in answers]
    count = sum(map(len, answers))
    print(f"{streams} streams of {tokens} tokens at {step * 1000:.0f} ms")
    print(f"  mean interval      {statistics.mean(means) / step:.4f} of the modelled")
    print(f"  server CPU         {spent / count * 1e6:.1f} us a token")
    print(f"  memory             {(peak - memory) / streams / 1024:.1f} KB a stream")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step", type=float, default=0.02)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "steady.yaml"
        profile.write_text(PROFILE.format(step=args.step))
        began = time.perf_counter()
        server = serve(str(profile))
        try:
            await listening()
            print(f"listening after {time.perf_counter() - began:.2f} s")
            await measure(args.streams, args.tokens, args.step, server.pid)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    asyncio.run(main())
