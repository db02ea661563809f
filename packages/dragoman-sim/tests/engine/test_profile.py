from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dragoman_check.load.logs.json_lines_log import read_log
from dragoman_check.load.request_lengths import UniformLength
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadError
from dragoman_check.load.workload_generators import generate_poisson
from dragoman_sim.engine.latency import LatencyModel, TokenCost
from dragoman_sim.engine.profile import (
    Hardware,
    ModelProfile,
    ProfileError,
    SimulatorProfile,
    dumps,
    list_profiles,
    load,
    loads,
)
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.calibration import calibrate, compare, round_numbers
from dragoman_sim.lab.latency_fit import CalibrationError, fit, simulate
from dragoman_sim.lab.least_squares import Rows, solve, solve_non_negative
from dragoman_sim.lab.prior import Prior

PROFILE = SimulatorProfile(
    "mine",
    Hardware("a GPU"),
    ModelProfile("a model"),
    SimulatedSchedulerConfig(),
    LatencyModel(0.01),
)
TRUTH = LatencyModel(0.012, (TokenCost(0, 3e-5),), per_context_token=8e-8, per_prefill_pair=1e-9)
WORKLOAD = generate_poisson(
    np.random.default_rng(5),
    count=120,
    rate=4.0,
    inputs=UniformLength(50, 2000),
    outputs=UniformLength(20, 200),
)


def test_profile_roundtrip_is_lossless() -> None:
    assert loads(dumps(PROFILE)) == PROFILE
    for name in list_profiles():
        assert loads(dumps(load(name))) == load(name)


def test_load_uses_vllm_defaults_and_parses_exponents(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nhardware: {name: a GPU}\nmodel: {name: a model}\nengine: {max_num_seqs: 7}\n"
        "latency: {base: 1e-2, per_token: [{beyond: 0, seconds: 1e-5}]}\n"
    )
    read = load(str(file))
    assert read.engine == SimulatedSchedulerConfig(max_num_seqs=7)
    assert read.latency == LatencyModel(0.01, (TokenCost(0, 1e-5),))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("base: 0.01", "base: 0"), "more than 0"),
        (("base: 0.01", "base: fast"), "latency.base"),
        (("base: 0.01", "basis: 0.01"), "latency"),
        (("max_num_seqs: 256", "max_num_seqs: 0"), "max_num_seqs"),
        (("name: mine", "name: [mine"), "flow"),
        (("name: mine\n", "\n"), "name"),
    ],
)
def test_loads_invalid_profile_reports_file_and_field(
    change: tuple[str, str], complaint: str
) -> None:
    with pytest.raises(ProfileError, match=complaint) as raised:
        loads(dumps(PROFILE).replace(*change), "broken.yaml")
    assert str(raised.value).startswith("broken.yaml: ")


def test_load_unknown_profile_raises_with_known_names() -> None:
    with pytest.raises(ProfileError, match=r"rtx4090-llama-3\.1-8b"):
        load("h100")
    with pytest.raises(ProfileError, match="No such file"):
        load("./none.yaml")


def observe(seconds: LatencyModel = TRUTH) -> list[Timing]:
    return simulate(WORKLOAD, SimulatedSchedulerConfig(), seconds, 0.001).timings


def test_fit_predicts_held_out_measurements() -> None:
    measured = observe()
    found = fit(WORKLOAD, measured[:60], SimulatedSchedulerConfig(), Prior())
    error = compare(
        measured[60:],
        simulate(WORKLOAD, SimulatedSchedulerConfig(), found.latency, 0.001).timings[60:],
    )
    assert max(abs(error.tpot.mean), abs(error.latency.mean)) < 0.005
    assert abs(error.ttft.mean) < 0.03, (
        "few requests on an idle server: depends on their arrival within a step"
    )
    assert found.error < 0.05


def test_fit_base_latency_is_positive() -> None:
    """Another simulator has this defect: its calibration extrapolates to 0 ms."""
    instant = LatencyModel(1e-6, (TokenCost(0, 1e-4),))
    found = fit(WORKLOAD, observe(instant)[:40], SimulatedSchedulerConfig(), Prior(frontend=0.0))
    assert found.latency.base > 0


@pytest.mark.parametrize(
    ("timings", "complaint"),
    [
        (observe()[:19], "at least 20"),
        ([msgspec.structs.replace(each, id="x") for each in observe()[:30]], "not in the workload"),
        (
            [
                msgspec.structs.replace(each, first_token_s=each.arrival_s)
                for each in observe()[:30]
            ],
            "order",
        ),
    ],
)
def test_fit_with_unusable_measurements_raises(timings: list[Timing], complaint: str) -> None:
    with pytest.raises(CalibrationError, match=complaint):
        fit(WORKLOAD, timings, SimulatedSchedulerConfig(), Prior())


def test_calibrate_without_held_out_requests_raises() -> None:
    with pytest.raises(CalibrationError, match="held out"):
        calibrate(
            "mine",
            (WORKLOAD, observe()),
            hardware=PROFILE.hardware,
            model=PROFILE.model,
            engine=PROFILE.engine,
            source="here",
            fitted_ids={request.id for request in WORKLOAD},
        )


def test_round_numbers_keeps_four_significant_digits() -> None:
    assert round_numbers(LatencyModel(0.0123456, (TokenCost(0, 1.23456e-5),))) == LatencyModel(
        0.01235, (TokenCost(0, 1.235e-5),)
    )


def test_read_log_without_times_raises_with_line_number() -> None:
    with pytest.raises(WorkloadError, match=r"line 1.*first_token_s"):
        read_log(['{"id": "a", "arrival_s": 0, "input_tokens": 1, "output_tokens": 1}'])


def test_solve_non_negative_clamps_negative_coefficients() -> None:
    features = np.array([[1.0, 1.0, 0.0], [1.0, 2.0, 1.0], [1.0, 3.0, 0.0], [1.0, 4.0, 1.0]])
    free = features @ np.array([2.0, 0.5, 0.25])
    assert solve_non_negative(Rows(features, free)) == pytest.approx([2.0, 0.5, 0.25])
    bound = solve_non_negative(Rows(features, features @ np.array([2.0, 0.5, -0.25])))
    assert bound[2] == 0
    assert (bound[:2] > 0).all()


def test_solve_ignores_outliers() -> None:
    rng = np.random.default_rng(0)
    features = np.column_stack([np.ones(100), rng.uniform(1, 10, 100)])
    targets = features @ np.array([1.0, 0.5])
    targets[:10] *= 5
    none = Rows(np.zeros((0, 2)), np.zeros(0))
    assert solve(Rows(features, targets), none) == pytest.approx([1.0, 0.5], rel=0.01)
