from __future__ import annotations

import numpy as np
import pytest

from dragoman_sim.engine.engine_core import EngineCore, LaunchedSteps
from dragoman_sim.engine.latency import LatencyModel, StepLoad, TokenCost, add_noise, speed_up
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig

from .checked_scheduler import sample, sequence


def core(asynchronous: bool, seconds: float = 1.0) -> EngineCore:
    config = SimulatedSchedulerConfig(
        block_size=4, num_gpu_blocks=100, async_scheduling=asynchronous
    )
    return EngineCore(SimulatedScheduler(config), lambda _: seconds)


def run_until(tested: EngineCore, until: float) -> list[tuple[float, list[str], list[str]]]:
    """Return the times at which each sequence got a token, and the sequences that
    finished.
    """
    steps: list[tuple[float, list[str], list[str]]] = []
    while tested.next_step_end is not None and tested.next_step_end <= until:
        outcome = tested.commit(tested.next_step_end)
        for each in outcome.sampled:
            sample(each)
        for each in outcome.finished:
            tested.abort(each)
        tested.launch(outcome.at)
        steps.append(
            (
                outcome.at,
                [each.id for each in outcome.sampled],
                [each.id for each in outcome.finished],
            )
        )
    return steps


def test_step_times_each_token_and_idle_core_has_no_step() -> None:
    tested = core(asynchronous=False)
    assert tested.next_step_end is None
    tested.add(sequence("a", [1, 2], 3))
    assert [each.id for each in tested.step(10.0).admitted] == ["a"]
    assert run_until(tested, 20.0) == [(11.0, ["a"], []), (12.0, ["a"], []), (13.0, ["a"], ["a"])]
    assert tested.next_step_end is None


def test_step_tokens_are_evenly_spaced() -> None:
    tested = core(asynchronous=True, seconds=0.02)
    tested.add(sequence("a", [1], 50))
    tested.step(0.0)
    times = [at for at, sampled, _ in run_until(tested, 9.0) if sampled]
    assert np.diff(times) == pytest.approx(np.full(49, 0.02))


@pytest.mark.parametrize(("asynchronous", "first"), [(False, 3.0), (True, 4.0)])
def test_arrival_during_step_waits_for_next_unscheduled_step(
    asynchronous: bool, first: float
) -> None:
    tested = core(asynchronous)
    tested.add(sequence("a", [1], 20))
    tested.step(0.0)
    run_until(tested, 1.0)
    tested.add(sequence("b", [2], 1))  # at 1.5, say: the step from 1 to 2 runs
    assert next(at for at, sampled, _ in run_until(tested, 9.0) if "b" in sampled) == first


def test_late_step_call_does_not_shift_later_steps() -> None:
    tested = core(asynchronous=True)
    tested.add(sequence("a", [1], 3))
    tested.step(0.0)
    assert [tested.step(now).at for now in (1.7, 2.2, 3.9)] == [1.0, 2.0, 3.0]


def test_step_before_due_time_is_noop() -> None:
    tested = core(asynchronous=True)
    tested.add(sequence("a", [1], 5))
    tested.step(0.0)
    assert not tested.step(0.5).sampled
    assert tested.next_step_end == 1.0


def test_aborted_sequence_gets_no_more_tokens() -> None:
    tested = core(asynchronous=True)
    aborted = sequence("a", [1], 5)
    tested.add(aborted)
    tested.add(sequence("b", [2], 2))
    tested.step(0.0)
    tested.abort(aborted)
    assert [sampled for _, sampled, _ in run_until(tested, 9.0)] == [["b"], ["b"]]


def test_abort_between_commit_and_launch_ends_sequence() -> None:
    tested = core(asynchronous=False)
    ended = sequence("a", [1], 5)
    tested.add(ended)
    tested.step(0.0)
    tested.commit(1.0)
    tested.abort(ended)
    assert tested.launch(1.0) == LaunchedSteps()
    assert (tested.next_step_end, tested.scheduler.pool.num_used) == (None, 0)


MODEL = LatencyModel(
    0.01, (TokenCost(0, 1e-5), TokenCost(100, 2e-5)), per_context_token=1e-7, per_prefill_pair=1e-9
)


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        (StepLoad(0), 0.01),
        (StepLoad(100), 0.011),
        (StepLoad(200), 0.013),
        (StepLoad(1, context=10_000), 0.01101),
        (StepLoad(1, prefill_pairs=1e6), 0.01101),
    ],
)
def test_compute_seconds_matches_formula(load: StepLoad, seconds: float) -> None:
    assert MODEL.compute_seconds(load) == pytest.approx(seconds)


def test_compute_seconds_adds_mixed_sequence_cost() -> None:
    mixed = LatencyModel(0.01, per_mixed_sequence=1e-4)
    assert mixed.compute_seconds(StepLoad(9, sequences=9)) == 0.01
    assert mixed.compute_seconds(StepLoad(9, prefill_pairs=2.0, sequences=5)) == pytest.approx(
        0.0105
    )


def test_compute_seconds_is_at_least_floor() -> None:
    assert LatencyModel(0.01, floor=0.5).compute_seconds(StepLoad(1)) == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": 0.0},
        {"base": -1.0},
        {"base": float("nan")},
        {"base": 1.0, "per_context_token": -1e-9},
        {"base": 1.0, "floor": -0.1},
        {"base": 1.0, "per_mixed_sequence": -1e-9},
        {"base": 1.0, "per_token": (TokenCost(0, -1.0),)},
        {"base": 1.0, "per_token": (TokenCost(64, 1.0),)},
        {"base": 1.0, "per_token": (TokenCost(0, 1.0), TokenCost(0, 2.0))},
    ],
)
def test_latency_model_with_invalid_values_raises(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        LatencyModel(**wrong)  # pyright: ignore[reportArgumentType]


def test_add_noise_keeps_mean_and_uses_given_generator() -> None:
    def drawn(seed: int) -> list[float]:
        tested = add_noise(lambda _: 2.0, 0.2, np.random.default_rng(seed))
        return [tested(StepLoad(1)) for _ in range(4000)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert np.mean(drawn(1)) == pytest.approx(2.0, rel=0.02)
    assert np.std(np.log(drawn(1))) == pytest.approx(0.2, rel=0.05)


def test_speed_up_divides_step_time() -> None:
    assert speed_up(lambda _: 2.0, 10)(StepLoad(1)) == 0.2
