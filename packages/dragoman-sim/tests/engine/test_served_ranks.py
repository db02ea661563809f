"""Data-parallel ranks of a profile, served as they are simulated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from dragoman.core.token_engine import Ended, OutputCallback, TokenOutput, TokenRequest
from dragoman.launch import build_models
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError
from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.build import DEFAULT_PROFILE
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.latency import LatencyModel, TokenCost
from dragoman_sim.engine.profile import Hardware, SimulatorProfile, dumps, load
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.lab.lock_step_replay import replay_in_lock_step
from dragoman_sim.lab.replica_router import ReplicaRouter
from tests.virtual_time import run_in_virtual_time

from .serving import Twin, twin

LATENCY = LatencyModel(
    0.01, per_token=(TokenCost(0, 1e-4),), per_expert_token=(TokenCost(0, 2e-4),)
)


def build_profile(*, lock_step: bool) -> SimulatorProfile:
    usual = load(DEFAULT_PROFILE)
    return msgspec.structs.replace(
        usual,
        hardware=Hardware("two GPUs", data_parallel=2, lock_step=lock_step),
        latency=LATENCY,
        frontend_seconds=0.0,
    )


def write_profile(directory: Path, *, lock_step: bool = True) -> str:
    path = directory / "ranks.yaml"
    path.write_text(dumps(build_profile(lock_step=lock_step)), encoding="utf-8")
    return str(path)


WORKLOAD = [
    WorkloadRequest("decoding", 0.0, 16, 60),
    WorkloadRequest("prompt", 0.1, 2000, 4),
    WorkloadRequest("later", 0.4, 300, 30),
    WorkloadRequest("last", 0.41, 40, 12),
]


async def serve(sim: Twin, request: WorkloadRequest) -> float:
    """Return the request's latency."""
    done = asyncio.Event()

    def deliver(output: TokenOutput) -> None:
        if isinstance(output, Ended):
            done.set()

    callback: OutputCallback = deliver
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await asyncio.sleep(request.arrival_s)
    # Other tokens for each request: they share no prefix.
    prompt = tuple(len(request.id) + index % 90 for index in range(request.input_tokens))
    sim.engine.add(
        TokenRequest(request.id, prompt, max_tokens=request.output_tokens),
        callback,
    )
    await done.wait()
    return loop.time() - begin - request.arrival_s


def test_served_ranks_in_lock_step_match_replay(tmp_path: Path) -> None:
    path = write_profile(tmp_path)

    async def run() -> list[float]:
        async with twin(profile=path, time_scale=1.0, sim_output_tokens="500") as sim:
            return list(await asyncio.gather(*(serve(sim, request) for request in WORKLOAD)))

    profile = build_profile(lock_step=True)
    cores = [
        EngineCore(SimulatedScheduler(profile.engine), LATENCY.compute_seconds) for _ in range(2)
    ]
    replayed = replay_in_lock_step(WORKLOAD, cores, 2, router=ReplicaRouter())
    assert run_in_virtual_time(run()) == pytest.approx(
        [timing.latency for timing in replayed.timings], abs=1e-6
    )


@pytest.mark.parametrize("lock_step", [True, False])
async def test_profile_with_ranks_serves_all_of_them(lock_step: bool, tmp_path: Path) -> None:
    path = write_profile(tmp_path, lock_step=lock_step)
    async with twin(profile=path, time_scale=1000.0) as sim:
        await asyncio.gather(*(sim.chat(max_tokens=5) for _ in range(6)))
        (state,) = (await sim.get("/dragoman/simulator")).json()["data"]
        metrics = (await sim.get("/metrics")).text
    steps = [rank["steps"] for rank in state["ranks"]]
    assert len(steps) == 2
    assert min(steps) > 0
    assert (steps[0] == steps[1]) or not lock_step
    assert 'engine="1"' in metrics


async def test_failed_ranks_in_lock_step_serve_again(tmp_path: Path) -> None:
    # At this speed an answer takes 27 seconds, so none ends before it is aborted.
    async with twin(profile=write_profile(tmp_path), time_scale=10.0) as sim:
        answers = [
            asyncio.create_task(sim.chat(max_tokens=20_000, ignore_eos=True)) for _ in range(4)
        ]
        while sim.engine.health().running < 4:  # noqa: ASYNC110 - until the engine has them
            await asyncio.sleep(0)
        await sim.engine.abort_all()
        aborted = await asyncio.gather(*answers)
        assert {each["choices"][0]["finish_reason"] for each in aborted} == {"abort"}
        again = await asyncio.gather(*(sim.chat(max_tokens=3) for _ in range(4)))
        assert all(each["usage"]["completion_tokens"] for each in again)


@pytest.mark.parametrize("count", [1, 3])
def test_other_number_of_lock_step_ranks_is_rejected(count: int, tmp_path: Path) -> None:
    settings = Settings(model="sim").replace(
        profile=write_profile(tmp_path), data_parallel_size=count
    )
    with pytest.raises(SettingsError, match=rf"--data-parallel-size {count}: .* 2 ranks"):
        build_models(settings, SystemClock())


def test_offloading_of_lock_step_ranks_is_rejected(tmp_path: Path) -> None:
    settings = Settings(model="sim").replace(
        profile=write_profile(tmp_path), kv_offloading_size=1.0
    )
    with pytest.raises(SettingsError, match="--kv-offloading-size is not simulated for ranks"):
        build_models(settings, SystemClock())
