"""Served is simulated: the same trace through a real server and on the virtual clock,
side by side.

    python benchmarks/simulator_served.py [--requests 64] [--rate 12] [--outputs
    200-400] [--profile PROFILE] python benchmarks/simulator_served.py --measured
    tests/data/measured-runs/rtxpro6000-llama-3.1-8b.jsonl \\
        --profile rtxpro6000-llama-3.1-8b

A server of its own process (`dragoman serve sim`, uvicorn on loopback), asked by one
client at the trace's moments; and `replay` of the trace with the engine settings that
the server has. Times of the server are those that the client saw. With a measured run,
its trace is sent, and its times are compared as well. Client and server share the
machine: where it is busy, the difference is what it was busy with.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from simulator_server import SIMULATOR, server

from dragoman.settings import Settings
from dragoman_check.load.logs.json_lines_log import read_log
from dragoman_check.load.request_lengths import parse_lengths
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import generate_poisson
from dragoman_sim.build import DEFAULT_PROFILE, build_scheduler_config
from dragoman_sim.engine.block_pool import SimulatedBlockPool
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.profile import SimulatorProfile, load
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.lab.replay import replay

LEAD = 0.5
"""Seconds between the measurement's beginning and the first request."""


def draw_prompt(request: WorkloadRequest, generator: np.random.Generator) -> list[int]:
    """A prompt of tokens, of the trace's length. Prompts share a prefix exactly as far
    as their hashes agree.
    """
    tokens: list[int] = []
    for block_hash in request.block_hashes[: request.input_tokens // request.block_size]:
        seed = int.from_bytes(hashlib.sha256(block_hash.encode()).digest()[:8])
        tokens += np.random.default_rng(seed).integers(0, 200, request.block_size).tolist()
    return tokens + generator.integers(0, 200, request.input_tokens - len(tokens)).tolist()


def body_of(request: WorkloadRequest, generator: np.random.Generator) -> bytes:
    wish = {
        "prompt": draw_prompt(request, generator),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,  # a chunk a token, also where that is half a character
    }
    body = json.dumps(wish).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


async def ask(port: int, request: WorkloadRequest, message: bytes, begin: float) -> Timing:
    """Sent at its moment; RuntimeError where the answer's length differs from the
    trace.
    """
    await asyncio.sleep(begin + request.arrival_s - 0.05 - time.perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    await asyncio.sleep(begin + request.arrival_s - time.perf_counter())
    sent = time.perf_counter()
    writer.write(message)
    lines: list[tuple[float, bytes]] = []
    while (line := await reader.readline()) and not line.startswith(b"data: [DONE]"):
        if line.startswith(b"data: {"):
            lines.append((time.perf_counter(), line))  # read later: others' tokens wait meanwhile
    writer.close()
    chunks, count = read(lines)
    if count != request.output_tokens:
        raise RuntimeError(
            f"{request.id}: {count} tokens came where {request.output_tokens} were asked for"
        )
    return Timing(
        request.id, sent - begin, chunks[0] - begin, chunks[-1] - begin, request.input_tokens, count
    )


def read(lines: Sequence[tuple[float, bytes]]) -> tuple[list[float], int]:
    """When tokens came, and how many."""
    times: list[float] = []
    count = 0
    for at, line in lines:
        tokens = json.loads(line[6:])["choices"][0].get("token_ids") or ()
        count += len(tokens)
        if tokens:
            times.append(at)
    return times, count


async def served(trace: Sequence[WorkloadRequest], profile: str) -> list[Timing]:
    generator = np.random.default_rng(1)
    messages = [body_of(request, generator) for request in trace]
    with server([*SIMULATOR, "--profile", profile]) as (_, port):
        warm = WorkloadRequest("warm", 0.0, 16, 4)
        await ask(port, warm, body_of(warm, generator), time.perf_counter() + LEAD)
        begin = time.perf_counter() + LEAD
        requests = (
            ask(port, request, message, begin)
            for request, message in zip(trace, messages, strict=True)
        )
        return list(await asyncio.gather(*requests))


def simulated(
    trace: Sequence[WorkloadRequest], profile: SimulatorProfile, label: str
) -> list[Timing]:
    config = build_scheduler_config(Settings(model="sim").replace(profile=label), profile)
    core = EngineCore(
        SimulatedScheduler(config, SimulatedBlockPool(config.num_gpu_blocks)),
        profile.latency.compute_seconds,
    )
    return replay(trace, [core], frontend_seconds=profile.frontend_seconds).timings


def interval(timings: Sequence[Timing]) -> float:
    """Mean seconds between two tokens, over all of them."""
    gaps = sum(each.output_tokens - 1 for each in timings)
    return sum(each.last_token_s - each.first_token_s for each in timings) / gaps


def compare(real: Sequence[Timing], virtual: Sequence[Timing], names: tuple[str, str]) -> None:
    print(f"{'':22}{names[0]:>12}{names[1]:>12}{'ratio':>9}{'difference':>14}")

    def row(name: str, left: float, right: float) -> None:
        print(
            f"{name:22}{left * 1e3:9.3f} ms{right * 1e3:9.3f} "
            f"ms{left / right:9.4f}{(left - right) * 1e3:+11.3f} ms"
        )

    row("mean ITL", interval(real), interval(virtual))
    for share in (50, 90):
        sides = [
            float(np.percentile([each.ttft for each in side], share)) for side in (real, virtual)
        ]
        row(f"TTFT p{share}", *sides)
    row("mean TTFT", *(statistics.mean(each.ttft for each in side) for side in (real, virtual)))
    row(
        "mean TPOT",
        *(statistics.mean(each.tpot for each in side if each.tpot) for side in (real, virtual)),
    )
    row(
        "mean latency",
        *(statistics.mean(each.latency for each in side) for side in (real, virtual)),
    )


def most_at_once(timings: Sequence[Timing]) -> int:
    moments = [(each.arrival_s, 1) for each in timings] + [
        (each.last_token_s, -1) for each in timings
    ]
    return int(np.cumsum([change for _, change in sorted(moments)]).max())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rate", type=float, default=12.0)
    parser.add_argument("--inputs", default="50-500")
    parser.add_argument("--outputs", default="200-400")
    parser.add_argument("--profile", default=DEFAULT_PROFILE)
    parser.add_argument(
        "--measured", type=Path, help="log of a measured run, as of simulate --save-detailed"
    )
    args = parser.parse_args()
    measured: Sequence[Timing] = ()
    if args.measured is not None:
        with args.measured.open(encoding="utf-8") as lines:
            trace, measured = read_log(lines)
    else:
        trace = generate_poisson(
            np.random.default_rng(0),
            count=args.requests,
            rate=args.rate,
            inputs=parse_lengths(args.inputs),
            outputs=parse_lengths(args.outputs),
        )
    virtual = simulated(trace, load(args.profile), args.profile)
    real = await served(trace, args.profile)
    print(f"{len(trace)} requests, at most {most_at_once(virtual)} at once, profile {args.profile}")
    compare(real, virtual, ("served", "simulated"))
    if measured:
        compare(real, measured, ("served", "measured"))
    late = max(
        each.arrival_s - request.arrival_s for each, request in zip(real, trace, strict=True)
    )
    print(f"the client sent at most {late * 1e3:.1f} ms late")


if __name__ == "__main__":
    asyncio.run(main())
