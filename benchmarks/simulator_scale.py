"""CPU time and memory of `dragoman simulate` for a million requests on 64 replicas.

    python -m benchmarks.simulator_scale [--requests 1000000] [--replicas 64] [--rate
    300] [--file TRACE.csv]

Lengths are log-normal with the medians and means that were published of Azure's
conversation trace of 2023 (prompts 1,020 and 1,155 tokens, answers 129 and 211); with
--file a trace of Azure or BurstGPT is written first, and read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

INPUTS = "lognormal:1020,0.5,8192"
OUTPUTS = "lognormal:129,1.0,2048"


def write_burstgpt(path: Path, requests: int, rate: float) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    arrivals = np.cumsum(generator.exponential(1 / rate, requests))
    inputs = np.clip(1020 * np.exp(generator.normal(0, 0.5, requests)), 1, 8192).astype(int)
    outputs = np.clip(129 * np.exp(generator.normal(0, 1.0, requests)), 1, 2048).astype(int)
    with path.open("w", encoding="utf-8") as file:
        file.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        for row in zip(arrivals.tolist(), inputs.tolist(), outputs.tolist(), strict=True):
            file.write(
                f"{row[0]:.3f},ChatGPT,{row[1]},{row[2]},{row[1] + row[2]},Conversation log\n"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument(
        "--rate", type=float, default=300.0, help="requests a second on all replicas"
    )
    parser.add_argument("--profile", default="rtxpro6000-llama-3.1-8b")
    parser.add_argument("--file", type=Path, help="write a trace in BurstGPT's format, and read it")
    options = parser.parse_args()
    workload = [
        "poisson",
        "--num-prompts",
        str(options.requests),
        "--request-rate",
        str(options.rate),
    ]
    workload += ["--input-len", INPUTS, "--output-len", OUTPUTS]
    if options.file is not None:
        write_burstgpt(options.file, options.requests, options.rate)
        workload = [str(options.file)]
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "simulate",
        *workload,
        "--profile",
        options.profile,
    ]
    began = time.monotonic()
    process = subprocess.Popen([*command, "--replicas", str(options.replicas)])
    _, status, usage = os.wait4(process.pid, 0)
    print(
        f"\nexit status {os.waitstatus_to_exitcode(status)}: "
        f"{usage.ru_utime + usage.ru_stime:.1f} s of CPU time, "
        f"{time.monotonic() - began:.1f} s, at most {usage.ru_maxrss / 1024:.0f} MiB of memory"
    )


if __name__ == "__main__":
    main()
