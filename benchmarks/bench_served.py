"""`dragoman bench` against `serve sim`, and the profile's prediction for the same
requests: the error of measuring.

    python benchmarks/bench_served.py [--requests 40] [--rate 1.2] [--time-scale 0.2]
    [--profile PROFILE] [--pin]

Client and server share the machine, whose own milliseconds weigh less the slower the
simulated server is: 0.2 is five times as slow. Each measured request is simulated at
the time at which it was sent.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from simulator_served import simulated
from simulator_server import SIMULATOR, server

from dragoman_check.load.bench_run import read_run
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.build import DEFAULT_PROFILE
from dragoman_sim.engine.profile import load
from dragoman_sim.lab.calibration import compare


def stretch(timing: Timing, factor: float) -> Timing:
    times = (timing.arrival_s * factor, timing.first_token_s * factor, timing.last_token_s * factor)
    return Timing(timing.id, *times, timing.input_tokens, timing.output_tokens)


def pin(process: int) -> None:
    """Give the server's threads one core, and this process and its children another."""
    first, *others = sorted(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {first})
    os.sched_setaffinity(0, {others[0] if others else first})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1.2)
    parser.add_argument("--inputs", default="50-400")
    parser.add_argument("--outputs", default="20-120")
    parser.add_argument("--time-scale", type=float, default=0.2)
    parser.add_argument("--profile", default=DEFAULT_PROFILE)
    parser.add_argument(
        "--pin", action="store_true", help="the server and the client on one core each (Linux)"
    )
    args = parser.parse_args()
    scale = args.time_scale
    options = ["--profile", args.profile, "--time-scale", str(scale)]
    with tempfile.TemporaryDirectory() as folder, server([*SIMULATOR, *options]) as (process, port):
        if args.pin:
            pin(process)
        log = Path(folder) / "log.jsonl"
        workload = ["--num-prompts", str(args.requests), "--request-rate", str(args.rate)]
        lengths = ["--input-len", args.inputs, "--output-len", args.outputs]
        command = [
            sys.executable,
            "-m",
            "dragoman",
            "bench",
            f"http://127.0.0.1:{port}",
            *workload,
            *lengths,
        ]
        subprocess.run([*command, "--save-detailed", str(log)], check=True)
        timings = read_run("log", log.read_bytes()).timings
    trace = [
        WorkloadRequest(each.id, each.arrival_s * scale, each.input_tokens, each.output_tokens)
        for each in timings
    ]
    by_id = {
        each.id: stretch(each, 1 / scale)
        for each in simulated(trace, load(args.profile), args.profile)
    }
    error = compare([by_id[each.id] for each in timings], timings)
    print(f"\n{'measured against simulated':<27}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}")
    for name, row in (("TTFT", error.ttft), ("E2E", error.latency), ("TPOT", error.tpot)):
        print(
            f"{name:<27}"
            + "".join(f"{value:>+9.2%}" for value in (row.mean, row.p50, row.p90, row.p99))
        )


if __name__ == "__main__":
    main()
