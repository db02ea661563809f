"""The metrics of several workers are summed, and never decrease when a worker dies or
does not answer.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from dragoman.launch.multiprocess.messages import (
    MergedMetrics,
    MetricsReport,
    WorkerChannel,
    encode_frame,
)
from dragoman.launch.multiprocess.metrics_hub import COLLECT_TIMEOUT, MetricsHub
from dragoman.serving.merged_metrics import (
    MetricFamily,
    MetricSample,
    merge_families,
)
from dragoman.serving.metrics_registry import build_registry


def family(name: str, type: str, *samples: tuple[str, dict[str, str], float]) -> MetricFamily:
    return MetricFamily(name, "Text.", type, [MetricSample(*sample) for sample in samples])


def worker(requests: float, running: float = 0.0) -> list[MetricFamily]:
    return [
        family("http_requests", "counter", ("http_requests_total", {"handler": "/a"}, requests)),
        family("running", "gauge", ("running", {}, running)),
    ]


def read(families: Sequence[MetricFamily], name: str) -> float:
    return sum(sample.value for item in families for sample in item.samples if sample.name == name)


class Rounds:
    """A hub whose workers' answers the test provides."""

    def __init__(self) -> None:
        self.requested_workers: list[int] = []
        self.answers: list[list[MetricFamily]] = []
        self.hub = MetricsHub(self.requested_workers.append)

    def ask(
        self,
        asking: int,
        own: Sequence[MetricFamily],
        ready: Sequence[int] = (0, 1),
        now: float = 0.0,
    ) -> None:
        self.hub.start_round(asking, own, ready, now, self.answers.append)


def test_merge_sums_values_by_name_and_labels() -> None:
    bucket = "ttft_bucket"
    first = [
        family(
            "ttft",
            "histogram",
            (bucket, {"le": "1.0"}, 1),
            (bucket, {"le": "+Inf"}, 2),
            ("ttft_sum", {}, 3.5),
        ),
        family("usage_perc", "gauge", ("usage_perc", {}, 0.5)),
        family("store_up", "gauge", ("store_up", {}, 1.0)),
        family("build_info", "gauge", ("build_info", {"version": "1"}, 1)),
        family("process_start_time_seconds", "gauge", ("process_start_time_seconds", {}, 100.0)),
        family("process_open_fds", "gauge", ("process_open_fds", {}, 10.0)),
    ]
    second = [
        family(
            "ttft",
            "histogram",
            (bucket, {"le": "1.0"}, 4),
            (bucket, {"le": "+Inf"}, 5),
            ("ttft_sum", {}, 1.5),
        ),
        family("usage_perc", "gauge", ("usage_perc", {}, 0.1)),
        family("store_up", "gauge", ("store_up", {}, 0.0)),
        family("build_info", "gauge", ("build_info", {"version": "1"}, 1)),
        family("process_start_time_seconds", "gauge", ("process_start_time_seconds", {}, 90.0)),
        family("process_open_fds", "gauge", ("process_open_fds", {}, 12.0)),
        family("faults", "counter", ("faults_total", {"kind": "x"}, 1.0)),
    ]
    text = generate_latest(build_registry(merge_families((first, second)))).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        'ttft_bucket{le="1.0"} 5.0',
        'ttft_bucket{le="+Inf"} 7.0',
        "ttft_sum 5.0",
        "usage_perc 0.3",
        "store_up 0.0",
        'build_info{version="1"} 1.0',
        "process_start_time_seconds 90.0",
        "process_open_fds 22.0",
        'faults_total{kind="x"} 1.0',
    ]


def test_concurrent_scrapes_query_each_worker_once() -> None:
    rounds = Rounds()
    rounds.ask(0, worker(1), ready=(0, 1, 2))
    rounds.ask(2, worker(4), ready=(0, 1, 2))
    assert (sorted(rounds.requested_workers), rounds.answers) == ([0, 1, 2], [])
    rounds.hub.add_report(1, worker(2))
    rounds.hub.add_report(2, worker(4))
    rounds.hub.finish_rounds((0, 1, 2), 0.5)
    assert [read(answer, "http_requests_total") for answer in rounds.answers] == [7]
    rounds.hub.add_report(0, worker(3))
    rounds.hub.finish_rounds((0, 1, 2), 0.5)
    assert [read(answer, "http_requests_total") for answer in rounds.answers] == [7, 9]
    assert read(rounds.answers[1], "dragoman_workers") == 3
    assert rounds.hub.next_deadline is None


def test_silent_worker_contributes_last_known_metrics() -> None:
    rounds = Rounds()
    rounds.ask(0, worker(1))
    rounds.hub.add_report(1, worker(5, running=2))
    rounds.hub.finish_rounds((0, 1), 0.0)
    rounds.ask(0, worker(2), now=10.0)
    assert rounds.hub.next_deadline == 10.0 + COLLECT_TIMEOUT
    rounds.hub.finish_rounds((0, 1), 10.0 + COLLECT_TIMEOUT / 2)
    assert len(rounds.answers) == 1
    rounds.hub.finish_rounds((0, 1), 10.0 + COLLECT_TIMEOUT)
    assert read(rounds.answers[1], "http_requests_total") == 7
    # It still has an unanswered query, so it gets no second one.
    rounds.ask(0, worker(3), now=20.0)
    assert rounds.requested_workers == [1, 1]


def test_dead_worker_counters_stay_and_gauges_are_removed() -> None:
    rounds = Rounds()
    rounds.ask(0, worker(1, running=1))
    rounds.hub.add_report(1, worker(5, running=2))
    rounds.hub.finish_rounds((0, 1), 0.0)
    assert read(rounds.answers[0], "running") == 3
    rounds.ask(0, worker(1, running=1), now=1.0)
    rounds.hub.end_worker(1)
    rounds.hub.finish_rounds((0,), 1.0)
    assert read(rounds.answers[1], "http_requests_total") == 6
    assert read(rounds.answers[1], "running") == 1
    rounds.ask(1, worker(2), ready=(1,), now=2.0)
    assert read(rounds.answers[2], "http_requests_total") == 8
    by_worker = next(item for item in rounds.answers[2] if item.name == "dragoman_worker_requests")
    assert {sample.labels["worker"]: sample.value for sample in by_worker.samples} == {
        "0": 1,
        "1": 7,
    }


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["work", "scrape", "die"])), max_size=60)
)
def test_counters_never_decrease_after_worker_death(steps: list[tuple[int, str]]) -> None:
    rounds = Rounds()
    counted = [0, 0, 0]
    previous = 0.0
    for number, step in steps:
        match step:
            case "work":
                counted[number] += 1
            case "die":
                rounds.hub.end_worker(number)
                counted[number] = 0
            case _:
                rounds.ask(number, worker(counted[number]), ready=(0, 1, 2))
                for other in {0, 1, 2} - {number}:
                    rounds.hub.add_report(other, worker(counted[other]))
                rounds.hub.finish_rounds((0, 1, 2), 0.0)
                total = read(rounds.answers[-1], "http_requests_total")
                assert total >= previous
                assert total >= sum(counted)
                previous = total


def test_worker_channel_reads_split_frames_and_send_never_blocks() -> None:
    ours, theirs = socket.socketpair()
    channel = WorkerChannel(ours)
    with theirs:
        report = MetricsReport((*worker(1), *worker(2)))
        received_reports: list[object] = []
        for piece in encode_frame(report) * 2:
            theirs.send(bytes([piece]))
            reports, is_open = channel.receive()
            assert is_open
            received_reports += reports
        assert received_reports == [report, report]
        families = tuple(worker(1) * 50_000)
        channel.send(MergedMetrics(7, families))
        assert channel.has_unsent
        received = bytearray()
        theirs.settimeout(60)
        while channel.has_unsent:
            received += theirs.recv(1 << 20)
            channel.flush()
        while len(received) < len(encode_frame(MergedMetrics(7, families))):
            received += theirs.recv(1 << 20)
        assert bytes(received) == encode_frame(MergedMetrics(7, families))
    assert channel.receive() == ([], False)
    channel.send(MergedMetrics(8, ()))
    assert not channel.has_unsent
    channel.close()
