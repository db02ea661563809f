"""The measured runs and the settings of their servers, from the runs' README; all are
fitted with the same method.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from msgspec import Struct

from dragoman_check.load.logs.json_lines_log import read_log
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.engine.profile import Hardware, ModelProfile, SimulatorProfile
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.calibration import calibrate

FOLDER = Path(__file__).parents[1] / "data" / "measured-runs"
FITTED = 100


class Run(Struct, frozen=True):
    name: str
    hardware: Hardware
    model: ModelProfile
    engine: SimulatedSchedulerConfig


LLAMA_8B = ModelProfile(
    "Llama-3.1-8B bf16", weight_bytes=16.06e9, kv_bytes_per_token=2 * 32 * 8 * 128 * 2, layers=32
)
RUNS = (
    Run(
        "rtx4090-llama-3.1-8b",
        Hardware("1x NVIDIA RTX 4090", memory_bandwidth=1008e9),
        LLAMA_8B,
        SimulatedSchedulerConfig(
            max_num_seqs=256, max_num_batched_tokens=2048, block_size=16, num_gpu_blocks=2588
        ),
    ),
    Run(
        "rtxpro6000-llama-3.1-8b",
        Hardware("1x NVIDIA RTX PRO 6000", memory_bandwidth=1597e9),
        LLAMA_8B,
        SimulatedSchedulerConfig(
            max_num_seqs=128, max_num_batched_tokens=2048, block_size=16, num_gpu_blocks=32000
        ),
    ),
)


@cache
def log(name: str) -> tuple[list[WorkloadRequest], list[Timing]]:
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return read_log(lines)


def calibrate_run(
    run: Run, measured: tuple[list[WorkloadRequest], list[Timing]]
) -> SimulatorProfile:
    return calibrate(
        run.name,
        measured,
        hardware=run.hardware,
        model=run.model,
        engine=run.engine,
        source=f"LLMServingSim, bench/examples, vLLM 0.19.0 (MIT, CASYS Lab at KAIST): {run.name}",
        fitted_ids={timing.id for timing in measured[1][:FITTED]},
    )


@cache
def get_profile(run: Run) -> SimulatorProfile:
    return calibrate_run(run, log(run.name))
