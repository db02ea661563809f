"""What `dragoman plan` answers for public traces, checked by brute force.

    python -m benchmarks.plan_traces                      print the table
    python -m benchmarks.plan_traces --write              write it into docs/plan.md
    python -m benchmarks.plan_traces --plots DIRECTORY    the plots of each plan

Run in the repository's root. The plan is made by the command in two processes. The
brute force replays every fleet of every configuration step by step by the scheduler,
not by the fast path of the plan, up to as many devices, and takes the cheapest that
meets the objectives.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from dragoman_check.load.trace_options import TraceOptions
from dragoman_check.load.trace_reader import read_trace
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_transforms import scale_arrivals
from dragoman_sim.lab.fleet_options import FleetOption, build_candidates
from dragoman_sim.lab.gpus import find_gpu
from dragoman_sim.lab.model_shape import load_model_shape
from dragoman_sim.lab.objectives import parse_objectives
from dragoman_sim.lab.simulation_report import build_report

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "packages/dragoman-sim/tests/data/traces"
PAGE = ROOT / "docs/plan.md"
MODEL = "meta-llama/Llama-3.1-8B"
PRICES = {"h100-sxm": 2.5, "a100-sxm": 1.3, "l40s": 0.8}
"""Dollars per hour of one device, as cloud providers ask them."""
TENSOR_PARALLEL = (1, 2)


class Scenario(Struct, frozen=True):
    """A trace with an objective. speedup: factor of the arrival rate."""

    name: str
    path: Path
    slo: str
    max_devices: int
    speedup: float = 1.0

    def read(self) -> Sequence[WorkloadRequest]:
        data = self.path.read_bytes()
        requests = read_trace(data, TraceOptions(), np.random.default_rng(0)).requests
        return scale_arrivals(requests, self.speedup)

    def build_command(self) -> list[str]:
        gpus = ",".join(f"{name}:{price}" for name, price in PRICES.items())
        command = ["dragoman", "plan", str(self.path), "--slo", self.slo, "--gpus", gpus]
        command += ["--model", MODEL, "--tp", ",".join(map(str, TENSOR_PARALLEL))]
        command += ["--max-devices", str(self.max_devices)]
        return command + (["--speedup", f"{self.speedup:g}"] if self.speedup != 1 else [])


class Answer(Struct, frozen=True):
    """What the command found. cpu_seconds: of all its processes."""

    document: dict[str, Any]
    cpu_seconds: float
    wall_seconds: float

    @property
    def best(self) -> dict[str, Any]:
        return self.document["fleets"][0]


class Cheapest(Struct, frozen=True):
    """What the brute force found. fleets: the number that it simulated."""

    fleets: int
    cost_per_hour: float
    configuration: str
    replicas: int


def list_scenarios() -> list[Scenario]:
    return [
        Scenario(
            "Azure, conversation, 2023",
            TRACES / "azure-conversation-2023.csv",
            "p99 ttft < 1s, p99 tpot < 50ms",
            max_devices=16,
            speedup=4.0,
        ),
        Scenario(
            "BurstGPT",
            TRACES / "burstgpt.csv",
            "p99 ttft < 500ms, p99 tpot < 50ms",
            max_devices=8,
            speedup=200.0,
        ),
        Scenario(
            "Mooncake, conversation",
            TRACES / "mooncake-conversation.jsonl",
            "p90 ttft < 5s, p99 tpot < 100ms",
            max_devices=24,
        ),
    ]


def run_plan(scenario: Scenario, plots: Path | None) -> Answer:
    command = [*scenario.build_command(), "--processes", "2", "--json"]
    command[0] = str(Path(sys.executable).with_name("dragoman"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if plots is not None:
        path = plots / f"{scenario.name.partition(',')[0].lower()}.png"
        subprocess.run([*command, "--plots", str(path)], check=True, capture_output=True)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Answer(json.loads(output), cpu, wall)


def search_exhaustively(scenario: Scenario) -> Cheapest:
    """Replay all fleets, step by step."""
    workload = scenario.read()
    objectives = parse_objectives(scenario.slo)
    found: list[tuple[float, str, int]] = []
    fleets = 0
    for candidate in list_candidates():
        for units in range(1, scenario.max_devices // candidate.devices_per_unit + 1):
            fleets += 1
            report = build_report(candidate.build_fleet(units, "round-robin").serve(workload))
            if all(objective.is_met(report) for objective in objectives):
                cost = units * candidate.devices_per_unit * candidate.price
                found.append((cost, candidate.description, units))
    cost, configuration, units = min(found)
    return Cheapest(fleets, cost, configuration, units)


def list_candidates() -> list[FleetOption]:
    candidates, refused = build_candidates(
        [(name, find_gpu(name), price) for name, price in PRICES.items()],
        [load_model_shape(MODEL)],
        tensor_parallel=TENSOR_PARALLEL,
        max_num_seqs=(),
        max_num_batched_tokens=(),
    )
    assert not refused
    return candidates


def build_section(results: Iterable[tuple[Scenario, Answer, Cheapest]]) -> list[str]:
    """Build the commands and the tables of docs/plan.md."""
    results = list(results)
    lines = ["| trace | requests | per second | objectives | cheapest | per hour | next GPU |"]
    lines += ["| --- " * 7 + "|"]
    for scenario, answer, _ in results:
        requests = scenario.read()
        span = max(request.arrival_s for request in requests)
        best = answer.best
        other = next(
            fleet
            for fleet in answer.document["fleets"]
            if fleet["meets_slo"] and fleet["gpu"] != best["gpu"]
        )
        lines.append(
            f"| {scenario.name} | {len(requests)} | {len(requests) / span:.1f} | {scenario.slo} | "
            f"{_name(best)} | {best['cost_per_hour']:.2f} | "
            f"{_name(other)}, {other['cost_per_hour']:.2f} |"
        )
    lines += ["", "| trace | fleets simulated | CPU | by brute force | cheapest of all |"]
    lines += ["| --- " * 5 + "|"]
    for scenario, answer, cheapest in results:
        is_equal = abs(cheapest.cost_per_hour - answer.best["cost_per_hour"]) < 1e-9
        lines.append(
            f"| {scenario.name} | {answer.document['simulated']} | {answer.cpu_seconds:.0f} s | "
            f"{cheapest.fleets} | {'the same' if is_equal else 'another'}, "
            f"{cheapest.cost_per_hour:.2f}: {cheapest.replicas} x {cheapest.configuration} |"
        )
    return lines


def _name(fleet: dict[str, Any]) -> str:
    mark = " ~" if fleet["within_error"] else ""
    return f"{fleet['replicas']} x {fleet['gpu']} tp{fleet['tensor_parallel_size']}{mark}"


def write_section(lines: Sequence[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    pattern = r"(<!-- plan-traces: begin -->\n).*?(<!-- plan-traces: end -->)"
    section = "\n".join(lines)
    PAGE.write_text(
        re.sub(pattern, lambda match: f"{match[1]}{section}\n{match[2]}", text, flags=re.DOTALL),
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--plots", type=Path, help="directory for plots")
    options = parser.parse_args()
    results: list[tuple[Scenario, Answer, Cheapest]] = []
    for scenario in list_scenarios():
        print(shlex.join(scenario.build_command()), flush=True)
        answer = run_plan(scenario, options.plots)
        print(f"{answer.cpu_seconds:.1f} s CPU, {answer.wall_seconds:.1f} s", flush=True)
        results.append((scenario, answer, search_exhaustively(scenario)))
    lines = build_section(results)
    print("\n".join(lines))
    if options.write:
        write_section(lines)


if __name__ == "__main__":
    main()
