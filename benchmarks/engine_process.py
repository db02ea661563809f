"""CPU and seconds of streams of the embedded model, with the engine in the server's
process and in one of its own.

    python benchmarks/engine_process.py [--streams 32] [--tokens 200] [--front-ends 1,2]
    [--rounds 3]

The first server is one process, the others have an engine process and so many front
ends. CPU is user and system time of all processes, from /proc, so for Linux only. The
client shares the cores with them. Nearly all of the time is the model's, which is the
smallest that there is: with a larger one the ratios are nearer to 1.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from installed import environment
from overhead import CHAT, MODEL, OPTIONS, SERVE, Load, build_chat, run_server, send_all
from workers import read_cpu


def measure(front_ends: int, load: Load, env: dict[str, str]) -> tuple[float, float]:
    """Microseconds of CPU, and of time, a token. front_ends: 0 is one process."""
    command = [
        *SERVE,
        "tiny",
        *OPTIONS,
        "--served-model-name",
        MODEL,
        "--api-profile",
        "vllm",
        "--store",
        "none",
    ]
    command += [
        "--log-level",
        "warning",
        *(["--api-server-count", str(front_ends)] if front_ends else []),
    ]
    n_tokens = load.clients * load.requests * load.tokens
    with run_server(command, env) as (process, port):
        # Warm: every front end has imported what it needs.
        asyncio.run(send_all(port, Load(16, 1, load.path, load.body, load.tokens, load.streamed)))
        cpu = read_cpu(process)
        started_at = time.perf_counter()
        asyncio.run(send_all(port, load))
        seconds = time.perf_counter() - started_at
        return (read_cpu(process) - cpu) / n_tokens * 1e6, seconds / n_tokens * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--front-ends", default="1,2", help="numbers of front ends")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    counts = [int(text) for text in arguments.front_ends.split(",")]
    body = build_chat(arguments.tokens, stream=True)
    load = Load(arguments.streams, 1, CHAT, body, arguments.tokens, streamed=True)
    ratios: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    print(f"{'front ends':>12}{'CPU us/token':>14}{'us/token':>10}{'ratios':>14}")
    with environment() as env:
        for _ in range(arguments.rounds):
            one = measure(0, load, env)
            print(f"{'one process':>12}{one[0]:14.1f}{one[1]:10.1f}", flush=True)
            for count in counts:
                found = measure(count, load, env)
                ratio = found[0] / one[0], found[1] / one[1]
                ratios[count].append(ratio)
                print(
                    f"{count:12}{found[0]:14.1f}{found[1]:10.1f}{ratio[0]:8.2f}{ratio[1]:6.2f}",
                    flush=True,
                )
    for count, found in ratios.items():
        cpu, seconds = (statistics.median(item[index] for item in found) for index in range(2))
        print(
            f"{count} front ends, median of the ratios: {cpu:.2f} CPU a token, {seconds:.2f} time "
            f"a token"
        )


if __name__ == "__main__":
    main()
