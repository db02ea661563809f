"""The fast replay for millions of requests gives the same figures as the replay of
every token.
"""

from __future__ import annotations

import math
import tracemalloc
from collections import deque

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import RequestError
from dragoman_check.load.load_statistics import Slo
from dragoman_check.load.request_lengths import FixedLength, UniformLength
from dragoman_check.load.request_table import RequestTable
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import (
    SessionOptions,
    generate_poisson,
    generate_sessions,
)
from dragoman_check.load.workload_transforms import scale_arrivals
from dragoman_sim.engine.engine_core import EngineCore, StepOutcome
from dragoman_sim.engine.latency import LatencyModel, MemoizedLatency, StepLoad, TokenCost
from dragoman_sim.engine.profile import SimulatorProfile, load
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.fleet import Fleet
from dragoman_sim.lab.plain_replay import PlainReplay, is_plain
from dragoman_sim.lab.plain_replica import LoadTotals, PlainReplica, PlainReplicaState, RequestTimes
from dragoman_sim.lab.replay import Replay
from dragoman_sim.lab.replay_result import ReplayResult
from dragoman_sim.lab.replica_router import ReplicaRouter
from dragoman_sim.lab.simulation_report import build_report
from dragoman_sim.lab.weighted_sample import WeightedSample

PROFILE = load("rtx4090-llama-3.1-8b")
SMALL = SimulatedSchedulerConfig(
    num_gpu_blocks=30, max_num_seqs=8, max_num_batched_tokens=32, block_size=4
)
SLO = Slo(ttft=0.1, tpot=0.02, latency=2.0)


def profile(config: SimulatedSchedulerConfig) -> SimulatorProfile:
    return msgspec.structs.replace(PROFILE, engine=config)


def table(rows: list[tuple[float, int, int]]) -> RequestTable:
    return RequestTable.build("r", ((index, *row) for index, row in enumerate(rows)))


def run_plain(
    requests: RequestTable, config: SimulatedSchedulerConfig, replicas: int = 1
) -> PlainReplay:
    plain = PlainReplay(requests, profile(config), replicas)
    plain.run()
    return plain


def assert_equal(plain: PlainReplay, exact: ReplayResult) -> None:
    times = plain.times
    for index, timing in enumerate(exact.timings):
        assert times.scheduled[index] == timing.scheduled_s
        assert times.first_token[index] == timing.first_token_s
        assert times.last_token[index] == timing.last_token_s
        assert (times.preemptions[index], times.replicas[index]) == (
            timing.preemptions,
            timing.replica,
        )
    assert plain.totals.steps == sum(len(log.ends) for log in exact.steps)
    expected = build_report(exact, SLO)
    report = plain.build_report(SLO)
    assert report.good == expected.good
    assert report.kv_transfer is report.host_cache_hits is None
    for name in set(expected.__struct_fields__) - {"kv_transfer", "host_cache_hits"}:
        value = getattr(report, name)
        wanted = getattr(expected, name)
        if isinstance(wanted, msgspec.Struct):
            value = msgspec.structs.astuple(value)
            wanted = msgspec.structs.astuple(wanted)
        assert value == pytest.approx(wanted, rel=1e-9, abs=1e-12), name


configs = st.builds(
    SimulatedSchedulerConfig,
    max_num_seqs=st.integers(1, 12),
    max_num_batched_tokens=st.integers(12, 64),
    block_size=st.sampled_from([1, 4, 16]),
    num_gpu_blocks=st.integers(12, 60),
    enable_prefix_caching=st.booleans(),
    enable_chunked_prefill=st.booleans(),
    async_scheduling=st.booleans(),
    scheduler_reserve_full_isl=st.booleans(),
    watermark=st.sampled_from([0.0, 0.1]),
    max_num_active_seqs=st.sampled_from([None, 1]),
)
rows = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.001, 0.05, 0.3, 2.0]), st.integers(1, 120), st.integers(1, 90)
    ),
    min_size=1,
    max_size=25,
)


def fit_rows(
    rows: list[tuple[float, int, int]], config: SimulatedSchedulerConfig
) -> list[tuple[float, int, int]]:
    """Shorten requests to the longest context that can run."""
    limit = config.max_context
    shortened = [(at, min(inputs, limit - 1), outputs) for at, inputs, outputs in rows]
    return [(at, inputs, min(outputs, limit - inputs)) for at, inputs, outputs in shortened]


class LoggedReplay(Replay):
    """A step-by-step replay on one replica that logs the state after each time."""

    states: dict[float, PlainReplicaState]

    def _handle_outcome(self, replica: int, outcome: StepOutcome) -> None:
        super()._handle_outcome(replica, outcome)
        core = self._cores[replica]
        scheduler = core.scheduler
        self.states[outcome.at] = PlainReplicaState(
            core.next_step_end,
            scheduler.num_running,
            scheduler.num_waiting,
            scheduler.pool.num_free,
        )


@given(configs, rows, st.integers(1, 30))
def test_plain_replica_state_equals_scheduler_state(
    config: SimulatedSchedulerConfig, rows: list[tuple[float, int, int]], stride: int
) -> None:
    """After every step, or every few: between these, runs of decoding steps are computed
    at once.
    """
    requests = table(fit_rows(rows, config)).sort()
    cores = [EngineCore(SimulatedScheduler(config), PROFILE.latency.compute_seconds)]
    exact = LoggedReplay(requests, cores, 0.0, ReplicaRouter(), None)
    exact.states = {}
    exact.run(None)
    plain = PlainReplica(
        config,
        PROFILE.latency,
        RequestTimes.allocate(len(requests)),
        LoadTotals(),
        WeightedSample(1000),
    )
    arrivals = deque(enumerate(requests))
    for at in sorted(exact.states)[::stride]:
        # A request that arrives at the end of a step can join the next one.
        while arrivals and arrivals[0][1].arrival_s <= at:
            index, request = arrivals.popleft()
            plain.advance(request.arrival_s)
            plain.enqueue(index, request.input_tokens, request.output_tokens, request.arrival_s)
        plain.advance(math.nextafter(at, math.inf))
        assert plain.state == exact.states[at]


@given(configs, rows, st.integers(1, 3))
def test_plain_replay_equals_step_by_step_replay(
    config: SimulatedSchedulerConfig, rows: list[tuple[float, int, int]], replicas: int
) -> None:
    requests = table(fit_rows(rows, config))
    assert is_plain(profile(config))
    exact = Fleet(profile=profile(config), replicas=replicas).serve(requests)
    assert_equal(run_plain(requests, config, replicas), exact)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_plain_replay_with_preemptions_equals_step_by_step(
    async_scheduling: bool, enable_prefix_caching: bool, seed: int
) -> None:
    config = msgspec.structs.replace(
        SMALL,
        async_scheduling=async_scheduling,
        enable_prefix_caching=enable_prefix_caching,
        scheduler_reserve_full_isl=False,
    )
    requests = generate_poisson(
        np.random.default_rng(seed),
        count=80,
        rate=20.0,
        inputs=UniformLength(1, 40),
        outputs=UniformLength(1, 60),
    )
    exact = Fleet(profile=profile(config)).serve(requests)
    assert sum(timing.preemptions for timing in exact.timings) > 20
    assert_equal(run_plain(requests, config), exact)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_plain_replay_with_long_decodes_equals_step_by_step(async_scheduling: bool) -> None:
    config = SimulatedSchedulerConfig(num_gpu_blocks=400, async_scheduling=async_scheduling)
    requests = generate_poisson(
        np.random.default_rng(3),
        count=60,
        rate=1.0,
        inputs=UniformLength(1, 900),
        outputs=UniformLength(1, 900),
    )
    exact = Fleet(profile=profile(config), replicas=2).serve(requests)
    plain = run_plain(requests, config, 2)
    assert_equal(plain, exact)
    assert plain.totals.rounds < plain.totals.steps / 8


def test_plain_replay_rounds_independent_of_output_tokens() -> None:
    rounds: list[int] = []
    for outputs in (200, 2000):
        # Of 20 ms a token: not at the moment when another request ends, before which a few
        # steps are taken one by one.
        requests = table([(float(outputs * index) / 90, 100, outputs) for index in range(40)])
        rounds.append(
            run_plain(requests, SimulatedSchedulerConfig(num_gpu_blocks=4000)).totals.rounds
        )
    assert rounds[1] < 1.5 * rounds[0]


def test_plain_replay_memory_per_request_is_bounded() -> None:
    count = 4000
    requests = generate_poisson(
        np.random.default_rng(5),
        count=count,
        rate=20.0,
        inputs=FixedLength(200),
        outputs=FixedLength(20),
    )
    plain = PlainReplay(
        requests, profile(SimulatedSchedulerConfig(num_gpu_blocks=4000)), 4, max_gaps=1000
    )
    tracemalloc.start()
    try:
        plain.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / count < 150


def test_fleet_uses_plain_replay_for_independent_requests() -> None:
    requests = generate_poisson(
        np.random.default_rng(1),
        count=50,
        rate=5.0,
        inputs=UniformLength(10, 300),
        outputs=UniformLength(1, 60),
    )
    for fleet in (
        Fleet(profile=PROFILE, replicas=2),
        Fleet(profile=PROFILE, replicas=2, routing="least-requests"),
        Fleet(profile=msgspec.structs.replace(PROFILE, noise=0.1), replicas=2),
    ):
        expected = build_report(fleet.serve(requests), SLO)
        report = fleet.build_report(requests, SLO)
        assert report.latency.p99 == pytest.approx(expected.latency.p99, rel=1e-9)
        assert report.waiting_mean == pytest.approx(expected.waiting_mean, rel=1e-9, abs=1e-12)
    talks = SessionOptions(
        FixedLength(3), UniformLength(50, 200), UniformLength(5, 20), think_seconds=0.5
    )
    sessions = generate_sessions(np.random.default_rng(1), count=10, rate=5.0, options=talks)
    assert RequestTable.convert(sessions) is None
    assert Fleet(profile=PROFILE).build_report(sessions).cache_hits > 0.2


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduling_policy": "priority"},
        {"long_prefill_token_threshold": 512},
        {"num_speculative_tokens": 3},
        {"max_num_seqs": 4096},
    ],
)
def test_is_plain_false_for_other_settings(changes: dict[str, object]) -> None:
    assert not is_plain(
        profile(msgspec.convert(msgspec.to_builtins(SMALL) | changes, SimulatedSchedulerConfig))
    )


def test_plain_replay_oversized_request_rejected() -> None:
    with pytest.raises(RequestError, match="the 116 tokens of the context"):
        run_plain(table([(0.0, 100, 40)]), SMALL)


def test_request_table_behaves_like_list() -> None:
    requests = table([(1.0, 5, 6), (0.5, 7, 8)])
    assert list(requests) == [WorkloadRequest("r0", 1.0, 5, 6), WorkloadRequest("r1", 0.5, 7, 8)]
    assert requests[1:] == [requests[-1]]
    assert list(requests.sort()) == [
        WorkloadRequest("r1", 0.0, 7, 8),
        WorkloadRequest("r0", 0.5, 5, 6),
    ]
    assert [request.arrival_s for request in scale_arrivals(requests, 2.0)] == [0.5, 0.25]
    assert scale_arrivals(list(requests), 2.0) == list(scale_arrivals(requests, 2.0))


def test_memoized_latency_equals_model_exactly() -> None:
    model = LatencyModel(
        0.003,
        (TokenCost(0, 1e-5), TokenCost(64, 3e-5)),
        3e-8,
        7e-9,
        1e-5,
        0.0031,
        (TokenCost(0, 2e-6),),
    )
    model = msgspec.structs.replace(model, per_mixed_sequence=3e-5)
    memoized = MemoizedLatency(model)
    for tokens, context, pairs in ((1, 10, 0.0), (70, 12345, 0.0), (300, 5000, 20500.5)):
        seconds = model.compute_seconds(StepLoad(tokens, context, pairs, 7))
        assert memoized(tokens, context, pairs, 7) == pytest.approx(seconds, rel=1e-15)
    contexts = np.array([7, 70, 700000])
    decoding = [model.compute_seconds(StepLoad(7, int(context), 0.0, 7)) for context in contexts]
    assert memoized.compute_decoding(7, contexts) == pytest.approx(decoding, rel=1e-15)


def test_weighted_percentiles_match_numpy() -> None:
    generator = np.random.default_rng(0)
    values = generator.gamma(2.0, 0.01, 3000)
    weights = generator.integers(1, 9, 3000)
    exact = WeightedSample()
    rounded = WeightedSample(1000)
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        exact.add(value, weight)
        rounded.add_many(np.array([value]), weight)
    repeated = np.repeat(values, weights)
    wanted = np.percentile(repeated, (50, 90, 99))
    assert exact.compute_percentiles((50, 90, 99)) == pytest.approx(wanted, rel=1e-12)
    assert (exact.mean, exact.count) == (pytest.approx(repeated.mean(), rel=1e-12), len(repeated))
    assert rounded.mean == pytest.approx(exact.mean, rel=1e-12)
    assert rounded.compute_percentiles((50, 90, 99)) == pytest.approx(wanted, rel=2**-13)
    assert WeightedSample().compute_percentiles((50,)) == [0.0]
