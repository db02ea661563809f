"""Replicas on Ray: added time to the first token, requests per second, CPU a token, and
prefix hits of the router.

    python benchmarks/replicas.py [--requests 300] [--streams 32] [--tokens 100]
    [--sections ttft,load,prefix]
                                  [--priority 10] [--json FILE]

Needs `ray[serve]`. Every figure of a cluster is taken in turns with a server alone that
runs beside it, request by request for the first token, so that the differences hold on
a machine with other work. One cluster runs at a time. CPU is that of all processes of
the cluster, from /proc, so for Linux only. `--priority` gives the client a place before
all other processes (chrt -f, for root), so that its own waits are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import uvloop
from installed import environment
from overhead import (
    CHAT,
    MODEL,
    OPTIONS,
    PROFILE,
    SERVE,
    Load,
    build_chat,
    describe_machine,
    read_usage,
    run_server,
    send_all,
)

# `tests` lies in the checkout and in each package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("packages/*")))

from tests.ray.cluster import Cluster, list_descendants, run_cluster, wait_until

STEP = 0.02
"""Seconds of a step of the simulated engine: an interval between two tokens."""
WARM_UP = 20
FRONTS = {
    "HAProxy, routing: prefix": (1, "prefix", True),
    "HAProxy, routing: load": (1, "load", True),
    "HAProxy, routing: prefix, 2 replicas": (2, "prefix", True),
    "Ray's proxy in Python": (1, "prefix", False),
}
"""By name: replicas, routing, and whether there is HAProxy."""
SESSIONS = 25
TURNS = 8
"""An odd number, as in turns two replicas would otherwise always get the same agents.
"""
CACHE_BLOCKS = 2200
"""KV cache of a replica, in blocks of 16 tokens: the conversations of half of the
agents fit into it, not of all.
"""


@contextmanager
def run_front(name: str, models: str) -> Generator[Cluster]:
    replicas, routing, uses_haproxy = FRONTS[name]
    ray = (
        f"ray: {{replicas: {replicas}, routing: {routing}, haproxy: {json.dumps(uses_haproxy)}, "
        f"cpus: 0.5}}\n"
    )
    with run_cluster(settings=f"{models}no-auth: true\n{ray}") as cluster:
        # Without it HAProxy would choose.
        wait_until(
            lambda: (
                not uses_haproxy or routing == "load" or bool(cluster.list_ready("DragomanRouter"))
            )
        )
        yield cluster


def write_models(folder: Path) -> str:
    """The models of a settings file: of quick steps, of steady ones, and with a small
    KV cache.
    """
    lines = "store: none\naccess-log: false\nlog-level: warning\nmodels:\n"
    for name, step, blocks in (
        (MODEL, 0.0005, 65536),
        ("steady", STEP, 65536),
        ("cached", 0.0005, CACHE_BLOCKS),
    ):
        profile = folder / f"{name}.yaml"
        profile.write_text(
            PROFILE.format(step=step).replace("num_gpu_blocks: 65536", f"num_gpu_blocks: {blocks}")
        )
        lines += f"  {name}: {{model: sim, profile: {profile}, pinned: true}}\n"
    return lines


def get_port(url: str) -> int:
    return int(url.rpartition(":")[2])


class Timer:
    """One connection whose requests are timed until the first token."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.connect()
        self._body = json.dumps(build_chat(2, stream=True))

    def time(self) -> float:
        started_at = time.perf_counter()
        self._connection.request("POST", CHAT, self._body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        while b'"content":"' not in (line := response.readline()):
            assert line, "the stream ended without a token"
        taken = time.perf_counter() - started_at
        response.read()
        return taken


def measure_first_token(alone: int, cluster: Cluster, requests: int) -> dict[str, float]:
    """Milliseconds: of the server alone, and what is added behind the proxy, and on the
    replica's own port.
    """
    found: dict[str, float] = {}
    ports = {"TTFT added": get_port(cluster.url)}
    if direct := cluster.list_direct_urls():
        ports["TTFT added at the replica"] = get_port(direct[0])
    for name, port in ports.items():
        # In turns, so that both servers find the caches of the processor as the other
        # one has left them.
        timers = (Timer(alone), Timer(port))
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(requests + WARM_UP):
            for timer, taken in zip(timers, times, strict=True):
                seconds = timer.time()
                if number >= WARM_UP:
                    taken.append(seconds)
        base, behind = (statistics.median(taken) * 1e3 for taken in times)
        found |= {"TTFT alone": base, name: behind - base}
    return found


def read_cluster_cpu(cluster: Cluster) -> float:
    total = 0.0
    for process in [cluster.process.pid, *(id for id, _ in list_descendants(cluster.process.pid))]:
        try:
            total += read_usage(process)[0]
        except OSError:
            continue  # It has just ended.
    return total


def measure_load(
    port: int, read_cpu: Callable[[], float], requests: int, streams: int, tokens: int
) -> dict[str, float]:
    """Requests per second, and microseconds of CPU of a request and of a streamed
    token.
    """
    short = Load(32, requests, CHAT, build_chat(2, stream=False), 2, streamed=False)
    steady = build_chat(tokens, stream=True) | {"model": "steady"}
    streamed = Load(streams, 1, CHAT, steady, tokens, streamed=True)
    found: dict[str, float] = {}
    for name, load, units in (
        ("request", short, 32 * requests),
        ("token", streamed, streams * tokens),
    ):
        # Warm: all have imported what they need.
        asyncio.run(send_all(port, Load(32, 1, load.path, load.body, load.tokens, load.streamed)))
        cpu = read_cpu()
        started_at = time.perf_counter()
        asyncio.run(send_all(port, load))
        found[f"us/{name}"] = (read_cpu() - cpu) / units * 1e6
        if name == "request":
            found["requests/s"] = units / (time.perf_counter() - started_at)
    return found


def replay_agents(ports: Sequence[int], label: str) -> float:
    """Replay agents that take turns, each request to the next port. Return the share of
    prompt tokens that hit.
    """
    system = "You are an agent that edits files. " + " ".join(
        f"Rule {number}: keep it short." for number in range(60)
    )
    conversations = [
        [
            {"role": "system", "content": system},
            {
                "role": "user",
                "content": f"{label}: task {number}. " + f"Look at file {number} first. " * 40,
            },
        ]
        for number in range(SESSIONS)
    ]
    turn = cycle(ports)
    cached = 0
    total = 0
    for _ in range(TURNS):
        for messages in conversations:
            connection = http.client.HTTPConnection("127.0.0.1", next(turn), timeout=60)
            body = json.dumps({"model": "cached", "messages": messages, "max_tokens": 8})
            connection.request("POST", CHAT, body, {"content-type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            connection.close()
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            total += answer["usage"]["prompt_tokens"]
            messages.append(
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            )
            messages.append({"role": "user", "content": "Now the next file. " * 30})
    return cached / total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--requests", type=int, default=300, help="for the first token, and of each connection"
    )
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--sections", default="ttft,load,prefix")
    parser.add_argument("--fronts", default="", help="only those whose names contain this")
    parser.add_argument("--priority", type=int, default=0, help="of the client, as for chrt -f")
    parser.add_argument("--json", help="write all figures to this file")
    arguments = parser.parse_args()
    if arguments.priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(arguments.priority))
    sections = set(arguments.sections.split(","))
    results: dict[str, dict[str, float]] = {}
    uvloop.install()
    with tempfile.TemporaryDirectory() as folder, environment() as env:
        models = write_models(Path(folder))
        settings = Path(folder) / "alone.yaml"
        settings.write_text(models)
        for name in FRONTS:
            if arguments.fronts not in name:
                continue
            with (
                run_server([*SERVE, *OPTIONS, "--config", str(settings)], env) as (process, alone),
                run_front(name, models) as cluster,
            ):
                found: dict[str, float] = {}
                if "ttft" in sections:
                    found |= measure_first_token(alone, cluster, arguments.requests)
                if "load" in sections:
                    sizes = (arguments.requests, arguments.streams, arguments.tokens)
                    server = measure_load(
                        alone, lambda process=process: read_usage(process)[0], *sizes
                    )
                    found |= measure_load(
                        get_port(cluster.url), lambda: read_cluster_cpu(cluster), *sizes
                    )
                    found |= {f"alone: {name}": value for name, value in server.items()}
                if "prefix" in sections and FRONTS[name][0] > 1:
                    ports = [get_port(url) for url in cluster.list_direct_urls()]
                    found["hits, round robin"] = replay_agents(ports, "in turns")
                    found["hits, routed"] = replay_agents([get_port(cluster.url)], "routed")
            results[name] = found
            print(
                name,
                *(f"  {key:28}{value:10.3f}" for key, value in found.items()),
                sep="\n",
                flush=True,
            )
    if arguments.json:
        document = {"machine": describe_machine(), "results": results}
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
