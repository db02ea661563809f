"""How fast the simulator replays, how near it comes to measured runs, and what each of
its parts is worth.

    python -m benchmarks.simulator [--speed] [--accuracy] [--comparison] [--ablations]
    [--write-profiles]

Run in the repository's root. Speed is in CPU time of one core and depends on the
machine; the errors do not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from dragoman_check.load.request_lengths import UniformLength
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import (
    SessionOptions,
    generate_poisson,
    generate_sessions,
)
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.latency import StepLoad, StepTime
from dragoman_sim.engine.profile import (
    PROFILES_DIR,
    SUFFIX,
    HeldOutError,
    MetricError,
    SimulatorProfile,
    dumps,
    load,
)
from dragoman_sim.engine.scheduler import CountSampled, SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.scheduler_output import SchedulerOutput
from dragoman_sim.engine.sequence import SimulatedSequence
from dragoman_sim.lab.calibration import calibrate, compare
from dragoman_sim.lab.calibration_spread import measure_spread
from dragoman_sim.lab.gpus import find_gpu
from dragoman_sim.lab.latency_fit import fit, simulate
from dragoman_sim.lab.measured_windows import CONTEXT, PAIRS, TOKENS
from dragoman_sim.lab.model_shape import load_model_shape
from dragoman_sim.lab.prior import Prior, predict_prior, read_prior
from dragoman_sim.lab.replay import replay
from dragoman_sim.lab.roofline import Parallelism, predict_profile

# `tests` lies in the checkout and in each package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("packages/*")))

from tests.lab.runs import FITTED, RUNS, Run, get_profile, log


def speed() -> None:
    print(
        f"{'workload':<34}{'requests':>9}{'req/CPU s':>11}{'us/seq-step':>13}"
        f"{'scheduler us':>14}{'x real time':>13}"
    )
    for run in RUNS:
        profile = load(run.name)
        _replayed(run.name, log(run.name)[0], profile.engine, profile.latency.compute_seconds)
    generator = np.random.default_rng(0)
    profile = load(RUNS[1].name)
    open_loop = generate_poisson(
        generator,
        count=5000,
        rate=6.0,
        inputs=UniformLength(50, 1500),
        outputs=UniformLength(50, 350),
    )
    _replayed("Poisson, 6 a second", open_loop, profile.engine, profile.latency.compute_seconds)
    talks = SessionOptions(
        UniformLength(2, 8),
        UniformLength(20, 300),
        UniformLength(50, 350),
        system_tokens=1000,
        groups=4,
    )
    multi_turn = generate_sessions(generator, count=1000, rate=1.0, options=talks)
    _replayed(
        "sessions with shared prefixes", multi_turn, profile.engine, profile.latency.compute_seconds
    )
    wide = msgspec.structs.replace(profile.engine, max_num_seqs=512)
    many = [WorkloadRequest(f"r{index}", 0.0, 16, 500) for index in range(512)]
    _replayed("512 streams decoding", many, wide, profile.latency.compute_seconds)


def _replayed(
    name: str,
    workload: Sequence[WorkloadRequest],
    engine: SimulatedSchedulerConfig,
    seconds: StepTime,
) -> None:
    began = time.process_time()
    replayed = replay(
        workload, [EngineCore(SimulatedScheduler(engine), seconds)], frontend_seconds=0.001
    )
    took = time.process_time() - began
    steps = sum(replayed.steps[0].sequences)
    simulated = max(timing.last_token_s for timing in replayed.timings)
    alone = _scheduler_alone(workload, engine)
    print(
        f"{name:<34}{len(workload):>9}{len(workload) / took:>11.0f}{1e6 * took / steps:>13.2f}"
        f"{alone:>14.2f}{simulated / took:>13.0f}"
    )


def _scheduler_alone(
    workload: Sequence[WorkloadRequest], engine: SimulatedSchedulerConfig
) -> float:
    """Microseconds of schedule and update for each sequence in a step, of the same
    workload.
    """
    taken = 0.0

    class Timed(SimulatedScheduler):
        def schedule(self) -> SchedulerOutput:
            nonlocal taken
            began = time.thread_time()
            step = super().schedule()
            taken += time.thread_time() - began
            return step

        def update(
            self, step: SchedulerOutput, count_sampled: CountSampled | None = None
        ) -> tuple[list[SimulatedSequence], list[SimulatedSequence]]:
            nonlocal taken
            began = time.thread_time()
            result = super().update(step, count_sampled)
            taken += time.thread_time() - began
            return result

    def constant(load: StepLoad) -> float:
        return 0.01 + 4e-5 * load.tokens + 8e-8 * load.context

    replayed = replay(workload, [EngineCore(Timed(engine), constant)])
    return 1e6 * taken / sum(replayed.steps[0].sequences)


def _row(error: MetricError) -> str:
    return ", ".join(
        f"{100 * value:+.2f}" for value in (error.mean, error.p50, error.p90, error.p99)
    )


def accuracy() -> None:
    """A table in Markdown: in a cell mean, p50, p90, p99."""
    print(f"\nerror in % over the {300 - FITTED} requests held out: mean, p50, p90, p99\n")
    print("| run | TTFT | latency | TPOT |\n| --- | --- | --- | --- |")
    for run in RUNS:
        calibration = get_profile(run).calibration
        assert calibration is not None
        assert calibration.error is not None
        error = calibration.error
        print(
            f"| {run.name} | "
            f"{' | '.join(_row(metric) for metric in (error.ttft, error.latency, error.tpot))} |"
        )
    print("\nthe same over other clocks and other requests to fit: lowest to highest\n")
    print("| run | TTFT | latency | TPOT |\n| --- | --- | --- | --- |")
    for run in RUNS:
        workload, measured = log(run.name)
        spread = measure_spread(
            (workload, measured), get_profile(run), {timing.id for timing in measured[:FITTED]}
        )
        pairs = (
            (getattr(spread.lowest, metric), getattr(spread.highest, metric))
            for metric in ("ttft", "latency", "tpot")
        )
        cells = (
            ", ".join(
                f"{100 * low:+.1f} to {100 * high:+.1f}"
                for low, high in zip(astuple(lowest), astuple(highest), strict=True)
            )
            for lowest, highest in pairs
        )
        print(f"| {run.name} | {' | '.join(cells)} |", flush=True)


ABLATIONS: dict[str, dict[str, Any]] = {
    "all of it": {},
    "no asynchronous scheduling": {"async_scheduling": False},
    "prompts not reserved whole": {"scheduler_reserve_full_isl": False},
    "no prefix caching": {"enable_prefix_caching": False},
    "no limit on the KV cache": {"num_gpu_blocks": 10**6},
    "no limit on sequences": {"max_num_seqs": 10**6},
    "no chunked prefill": {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
}
"""Of the scheduler."""
TERMS = {
    "no cost of context": (CONTEXT,),
    "no cost of a prompt's attention": (PAIRS,),
    "no cost of tokens": tuple(range(TOKENS.start, TOKENS.stop)),
}
"""Of a step's time."""


def ablations() -> None:
    """A table in Markdown: the parts in rows, the runs in columns; in a cell mean TTFT
    / latency / TPOT.
    """
    print(
        f"\n| fitted anew with | {' | '.join(run.name for run in RUNS)} |\n| --- "
        f"|{' --- |' * len(RUNS)}"
    )
    for name, change in ABLATIONS.items():
        _ablated(
            name, [_without(run, predict_prior(run.hardware, run.model), change) for run in RUNS]
        )
    for name, columns in TERMS.items():
        _ablated(
            name,
            [_without(run, predict_prior(run.hardware, run.model), {}, columns) for run in RUNS],
        )
    _ablated("no hardware parameters", [_without(run, Prior(), {}) for run in RUNS])


def _ablated(name: str, errors: list[HeldOutError]) -> None:
    cells = [
        f"{100 * e.ttft.mean:+.1f} / {100 * e.latency.mean:+.1f} / {100 * e.tpot.mean:+.1f}"
        for e in errors
    ]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _without(
    run: Run, prior: Prior, change: dict[str, Any], columns: tuple[int, ...] = ()
) -> HeldOutError:
    workload, measured = log(run.name)
    engine = msgspec.structs.replace(run.engine, **change)
    found = fit(workload, measured[:FITTED], engine, prior, columns)
    simulated = simulate(workload, engine, found.latency, found.frontend_seconds).timings
    return compare(measured[FITTED:], simulated[FITTED:])


PREDICTED = (
    ("rtx4090-llama-3.1-8b", "rtx4090", "meta-llama/Llama-3.1-8B", Parallelism(), 256),
    ("rtxpro6000-llama-3.1-8b", "rtxpro6000", "meta-llama/Llama-3.1-8B", Parallelism(), 128),
    (
        "rtxpro6000x2-qwen3-30b-a3b-dp2-ep2",
        "rtxpro6000",
        "Qwen/Qwen3-30B-A3B",
        Parallelism(1, 2, expert=True),
        128,
    ),
)
"""Measured runs, and what predicts them: device, model, parallelism and `max_num_seqs`.
"""


def comparison() -> None:
    """A table in Markdown: predicted over all requests, and fitted on the first ones
    over the others.
    """
    print("\nerror in %: mean, p50, p90, p99\n")
    print("| run | profile | TTFT | latency | TPOT |\n| --- | --- | --- | --- | --- |")
    for name, gpu, model, parallelism, max_num_seqs in PREDICTED:
        workload, measured = log(name)
        settings = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048}
        shape = load_model_shape(model)
        predicted = predict_profile(find_gpu(gpu), shape, parallelism, name=name, settings=settings)
        simulated = _serve(predicted, workload)
        _compared(name, "predicted", compare(measured, simulated))
        known = next((run for run in RUNS if run.name == name), None)
        fitted = calibrate(
            name,
            (workload, measured),
            hardware=predicted.hardware if known is None else known.hardware,
            model=predicted.model if known is None else known.model,
            engine=predicted.engine if known is None else known.engine,
            source=name,
            fitted_ids={timing.id for timing in measured[:FITTED]},
            prior=read_prior(predicted),
        )
        _compared(name, "fitted", compare(measured[FITTED:], _serve(fitted, workload)[FITTED:]))


def _serve(profile: SimulatorProfile, workload: list[WorkloadRequest]) -> list[Timing]:
    return simulate(
        workload,
        profile.engine,
        profile.latency,
        profile.frontend_seconds,
        ranks=profile.hardware.ranks,
    ).timings


def _compared(name: str, kind: str, error: HeldOutError) -> None:
    cells = " | ".join(_row(metric) for metric in (error.ttft, error.latency, error.tpot))
    print(f"| {name} | {kind} | {cells} |", flush=True)


def write_profiles() -> None:
    for run in RUNS:
        path = f"{PROFILES_DIR}/{run.name}{SUFFIX}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(dumps(get_profile(run)))
        print(path)


def main() -> None:
    parts = {
        "speed": speed,
        "accuracy": accuracy,
        "comparison": comparison,
        "ablations": ablations,
        "write-profiles": write_profiles,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in parts:
        parser.add_argument(f"--{name}", action="store_true")
    arguments = vars(parser.parse_args())
    chosen = [name for name in parts if arguments[name.replace("-", "_")]]
    for name in chosen or ("speed", "accuracy"):
        parts[name]()


if __name__ == "__main__":
    main()
