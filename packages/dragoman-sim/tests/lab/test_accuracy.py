"""Fitted to the first 100 requests of a measured run, the simulator predicts the other
200.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.engine.profile import HeldOutError, SimulatorProfile, load
from dragoman_sim.lab.calibration import calibrate, compare
from dragoman_sim.lab.calibration_spread import NUM_VARIATIONS, list_variations, measure_spread
from dragoman_sim.lab.gpus import find_gpu
from dragoman_sim.lab.latency_fit import fit, simulate
from dragoman_sim.lab.model_shape import load_model_shape
from dragoman_sim.lab.prior import Prior, predict_prior, read_prior
from dragoman_sim.lab.roofline import Parallelism, predict_profile

from .runs import FITTED, RUNS, Run, calibrate_run, get_profile, log

# Fitting the second run takes ten seconds.
runs = pytest.mark.parametrize(
    "run", [RUNS[0], pytest.param(RUNS[1], marks=pytest.mark.long)], ids=lambda run: run.name
)


def compute_held_out(run: Run, profile: SimulatorProfile) -> HeldOutError:
    workload, measured = log(run.name)
    simulated = simulate(
        workload, profile.engine, profile.latency, profile.frontend_seconds
    ).timings
    return compare(measured[FITTED:], simulated[FITTED:])


def worst(error: HeldOutError) -> tuple[float, float]:
    """Return the largest errors of the means and of the percentiles."""
    metrics = (error.ttft, error.latency, error.tpot)
    percentiles = [
        abs(value) for metric in metrics for value in (metric.p50, metric.p90, metric.p99)
    ]
    return max(abs(metric.mean) for metric in metrics), max(percentiles)


@runs
def test_fit_mean_error_below_2_percent_percentiles_below_5(run: Run) -> None:
    mean, percentile = worst(compute_held_out(run, get_profile(run)))
    assert mean < 0.02
    assert percentile < 0.05


@pytest.mark.long
@runs
def test_fit_from_log_only_meets_error_bounds(run: Run) -> None:
    """The fit works without information about hardware and model, and without
    scheduled_s.
    """
    workload, measured = log(run.name)
    observed = [msgspec.structs.replace(timing, scheduled_s=None) for timing in measured[:FITTED]]
    found = fit(workload, observed, run.engine, Prior())
    bare = msgspec.structs.replace(
        get_profile(run), latency=found.latency, frontend_seconds=found.frontend_seconds
    )
    mean, percentile = worst(compute_held_out(run, bare))
    assert mean < 0.02
    assert percentile < 0.05


@pytest.mark.long
@runs
def test_fit_on_middle_requests_meets_error_bounds(run: Run) -> None:
    """Guards against settings of the method that fit only the beginnings of these runs."""
    workload, measured = log(run.name)
    others = [*measured[:FITTED], *measured[2 * FITTED :]]
    prior = predict_prior(run.hardware, run.model)
    found = fit(workload, measured[FITTED : 2 * FITTED], run.engine, prior)
    simulated = simulate(workload, run.engine, found.latency, found.frontend_seconds).timings
    mean, percentile = worst(compare(others, [*simulated[:FITTED], *simulated[2 * FITTED :]]))
    assert mean < 0.02
    assert percentile < 0.05


@pytest.mark.long
def test_fit_on_noisy_measurements_meets_error_bounds() -> None:
    run = RUNS[1]
    generator = np.random.default_rng(0)
    workload, measured = log(run.name)
    first, last = np.exp(generator.normal(0.0, 0.02, (2, FITTED)))
    noisy = [
        msgspec.structs.replace(
            each,
            first_token_s=each.arrival_s + each.ttft * first[index],
            last_token_s=each.arrival_s
            + each.ttft * first[index]
            + (each.latency - each.ttft) * last[index],
        )
        for index, each in enumerate(measured[:FITTED])
    ]
    profile = calibrate_run(run, (workload, [*noisy, *measured[FITTED:]]))
    mean, percentile = worst(compute_held_out(run, profile))
    assert mean < 0.02
    assert percentile < 0.05


@pytest.mark.long
def test_fit_ignores_held_out_requests() -> None:
    run = RUNS[1]
    workload, measured = log(run.name)
    lies = [
        msgspec.structs.replace(
            each, first_token_s=each.arrival_s + 1, last_token_s=each.arrival_s + 2
        )
        for each in measured[FITTED:]
    ]
    lied_to = calibrate_run(run, (workload, [*measured[:FITTED], *lies]))
    assert lied_to.latency == get_profile(run).latency
    assert lied_to.calibration != get_profile(run).calibration


@runs
def test_shipped_profile_equals_fit(run: Run) -> None:
    """Update it with `python -m benchmarks.simulator --write-profiles`."""
    shipped = load(run.name)
    found = get_profile(run)
    assert msgspec.structs.replace(
        shipped, latency=found.latency, calibration=None, frontend_seconds=0
    ) == (msgspec.structs.replace(found, calibration=None, frontend_seconds=0))
    assert shipped.latency.base == pytest.approx(found.latency.base, rel=0.01)
    assert shipped.latency.per_context_token == pytest.approx(
        found.latency.per_context_token, rel=0.01
    )
    assert shipped.calibration is not None
    assert shipped.calibration.error is not None
    assert worst(shipped.calibration.error) == pytest.approx(
        worst(compute_held_out(run, shipped)), abs=1e-4
    )


@runs
def test_list_variations_vary_clock_and_fitted_requests(run: Run) -> None:
    _, measured = log(run.name)
    first = [each.id for each in measured[:FITTED]]
    variations = list_variations(measured, first)
    assert len(variations) == NUM_VARIATIONS
    assert [len(ids) for _, ids in variations] == [100, 100, 100, 100, 66, 133]
    assert len({(ids, timings[0].first_token_s) for timings, ids in variations}) == NUM_VARIATIONS
    for timings, _ in variations:
        for original, each in zip(measured, timings, strict=True):
            assert original.arrival_s == each.arrival_s < each.first_token_s <= each.last_token_s
            assert each.first_token_s == pytest.approx(original.first_token_s, abs=0.0011)


@pytest.mark.long
def test_error_spread_covers_error() -> None:
    """With a simulated log the fit is exact, so that only the clocks' resolution of a
    millisecond causes the error.
    """
    profile = load(RUNS[1].name)
    workload = [WorkloadRequest(f"{number}", number / 5, 200, 20) for number in range(60)]
    measured = simulate(workload, profile.engine, profile.latency, profile.frontend_seconds).timings
    fitted = {each.id for each in measured[:24]}
    own = calibrate(
        "own",
        (workload, measured),
        hardware=profile.hardware,
        model=profile.model,
        engine=profile.engine,
        source="",
        fitted_ids=fitted,
    )
    ticks: list[int] = []
    spread = measure_spread((workload, measured), own, fitted, ticks.append)
    assert ticks == [1, 2, 3, 4, 5, 6]
    assert own.calibration is not None
    error = own.calibration.error
    assert error is not None
    for metric in ("ttft", "latency", "tpot"):
        lowest = getattr(spread.lowest, metric)
        highest = getattr(spread.highest, metric)
        assert lowest.mean <= getattr(error, metric).mean <= highest.mean
        assert -0.05 < lowest.p99 <= highest.p99 < 0.05
    assert spread.highest.ttft.mean > spread.lowest.ttft.mean


@pytest.mark.parametrize(
    "wrong", [{"num_gpu_blocks": 32000}, {"max_num_seqs": 32}, {"max_num_batched_tokens": 512}]
)
def test_wrong_engine_setting_increases_error(wrong: dict[str, int]) -> None:
    """Negative case: the figures above depend on the scheduler's rules, not on a lucky
    average.
    """
    profile = load(RUNS[0].name)
    engine = msgspec.structs.replace(profile.engine, **wrong)
    assert (
        worst(compute_held_out(RUNS[0], msgspec.structs.replace(profile, engine=engine)))[0] > 0.02
    )


@pytest.mark.long
def test_expert_parallel_mean_error_below_3_percent_p99_below_6() -> None:
    name = "rtxpro6000x2-qwen3-30b-a3b-dp2-ep2"
    workload, measured = log(name)
    predicted = predict_profile(
        find_gpu("rtxpro6000"),
        load_model_shape("Qwen/Qwen3-30B-A3B"),
        Parallelism(1, 2, expert=True),
        name=name,
        settings={"max_num_seqs": 128, "max_num_batched_tokens": 2048},
    )
    prior = read_prior(predicted)
    ranks = predicted.hardware.ranks
    found = fit(workload, measured[:FITTED], predicted.engine, prior, ranks=ranks)
    simulated = simulate(
        workload, predicted.engine, found.latency, found.frontend_seconds, ranks=ranks
    ).timings
    error = compare(measured[FITTED:], simulated[FITTED:])
    assert found.latency.per_mixed_sequence > 5e-5
    for metric in (error.ttft, error.latency, error.tpot):
        assert abs(metric.mean) < 0.03
        assert abs(metric.p99) < 0.06
