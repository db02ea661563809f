"""Workloads: generators, their determinism, and the trace file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from dragoman_check.load.arrivals import generate_arrivals
from dragoman_check.load.request_lengths import FixedLength, LogNormalLength, UniformLength
from dragoman_check.load.trace_file import encode_workload, read_workload
from dragoman_check.load.workload import WorkloadError, WorkloadRequest
from dragoman_check.load.workload_generators import (
    SessionOptions,
    generate_bursts,
    generate_poisson,
    generate_sessions,
)
from dragoman_check.load.workload_transforms import scale_arrivals

SESSION_OPTIONS = SessionOptions(
    FixedLength(3),
    UniformLength(10, 50),
    UniformLength(5, 30),
    think_seconds=2.0,
    system_tokens=40,
    groups=2,
)


def build_generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_workload_round_trips_through_file() -> None:
    requests = generate_sessions(build_generator(), count=5, rate=1.0, options=SESSION_OPTIONS)
    assert read_workload(encode_workload(requests).splitlines()) == requests


def test_read_workload_ignores_extra_fields_and_empty_lines() -> None:
    line = '{"id": "a", "arrival_s": 0, "input_tokens": 3, "output_tokens": 2, "last_token_s": 7.5}'
    assert read_workload([line, "", b"\n"]) == [WorkloadRequest("a", 0.0, 3, 2)]


VALID_LINE = '{"id": "a", "arrival_s": 0, "input_tokens": 1, "output_tokens": 1}'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([VALID_LINE, "{"], "line 2"),
        (
            [VALID_LINE.replace('"output_tokens": 1', '"output_tokens": 0')],
            r"line 1.*output_tokens",
        ),
        ([VALID_LINE.replace('"arrival_s": 0', '"arrival_s": -1')], r"line 1.*arrival_s"),
        ([VALID_LINE.replace(', "input_tokens": 1', "")], r"line 1.*input_tokens"),
        ([VALID_LINE, VALID_LINE], "twice"),
        ([VALID_LINE.replace("}", ', "after": "b"}')], "no request before it"),
    ],
)
def test_read_workload_invalid_line_error_names_location(lines: list[str], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        read_workload(lines)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0, np.inf])
def test_generate_arrivals_keep_rate_at_any_burstiness(burstiness: float) -> None:
    arrivals = np.array(
        list(islice(generate_arrivals(build_generator(), rate=5.0, burstiness=burstiness), 5000))
    )
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.1, abs=1e-9)


def test_generate_poisson_is_deterministic_by_seed() -> None:
    def generate_requests(seed: int) -> Sequence[WorkloadRequest]:
        lengths = LogNormalLength(300, 0.8, maximum=2000)
        return generate_poisson(
            build_generator(seed), count=50, rate=2.0, inputs=lengths, outputs=lengths
        )

    assert generate_requests(1) == generate_requests(1)
    assert generate_requests(1) != generate_requests(2)
    assert all(1 <= request.input_tokens <= 2000 for request in generate_requests(1))


def test_generate_bursts_share_arrival_time() -> None:
    requests = generate_bursts(
        build_generator(),
        count=5,
        size=2,
        interval=10.0,
        inputs=FixedLength(1),
        outputs=FixedLength(1),
    )
    assert [request.arrival_s for request in requests] == [0, 0, 10, 10, 20]


def test_generate_sessions_turn_extends_previous_turn() -> None:
    first, second, _ = generate_sessions(
        build_generator(), count=1, rate=1.0, options=SESSION_OPTIONS
    )
    assert second.after == first.id
    assert second.input_tokens > first.input_tokens + first.output_tokens
    assert second.block_hashes[: len(first.block_hashes)] == first.block_hashes
    assert len(first.block_hashes) == (first.input_tokens + first.output_tokens) // 16


def test_generate_sessions_share_only_system_prompt_of_group() -> None:
    requests = [
        request
        for request in generate_sessions(
            build_generator(), count=20, rate=1.0, options=SESSION_OPTIONS
        )
        if not request.after
    ]
    system_prompts = {request.block_hashes[:2] for request in requests}
    assert len(system_prompts) == 2, "forty tokens are two full blocks"
    assert len({request.block_hashes[2] for request in requests}) == len(requests)


def test_scale_arrivals_keeps_think_times() -> None:
    assert scale_arrivals(
        [WorkloadRequest("a", 8.0, 1, 1), WorkloadRequest("b", 8.0, 1, 1, after="a")], 2.0
    ) == [
        WorkloadRequest("a", 4.0, 1, 1),
        WorkloadRequest("b", 8.0, 1, 1, after="a"),
    ]
