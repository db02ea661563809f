"""The merged metrics of all workers. The supervisor keeps them, so no counter decreases
when a worker is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...serving.merged_metrics import MetricFamily, MetricSample, keep_cumulative, merge_families

COLLECT_TIMEOUT = 1.0
"""Seconds to wait for the metrics of a worker; after that its previous ones are used.
"""

ENGINE_NUMBER = -1
"""Denotes, in place of a worker's number, the engine process."""

Answer = Callable[[list[MetricFamily]], None]


@dataclass(slots=True, eq=False)
class _Round:
    """A request for the metrics.

    answer: called with the merged metrics.
    missing: numbers of the workers that have not reported yet.
    deadline: time at which the request is answered even if reports are missing.
    """

    answer: Answer
    missing: set[int]
    deadline: float


@dataclass(slots=True)
class MetricsHub:
    """Collects the metrics of the workers, and merges them.

    collect: requests the metrics of the worker with a number.
    """

    collect: Callable[[int], None]
    restarts: int = 0
    """Number of workers that have been replaced."""
    engine_restarts: int | None = None
    """Number of engine processes that have been replaced; None if each worker has its
    own engine.
    """
    _current: dict[int, Sequence[MetricFamily]] = field(
        default_factory=dict[int, Sequence[MetricFamily]]
    )
    _ended: dict[int, Sequence[MetricFamily]] = field(
        default_factory=dict[int, Sequence[MetricFamily]]
    )
    """The counters of replaced workers, by number."""
    _rounds: list[_Round] = field(default_factory=list[_Round])
    _outstanding: set[int] = field(default_factory=set[int])
    """Numbers of the workers whose report is outstanding, for one or several rounds."""

    @property
    def next_deadline(self) -> float | None:
        return min((item.deadline for item in self._rounds), default=None)

    def start_round(
        self,
        asking: int,
        own: Sequence[MetricFamily],
        ready: Sequence[int],
        now: float,
        answer: Answer,
    ) -> None:
        """Request the metrics of all ready workers.

        asking: number of the worker whose client requests them.
        own: the metrics of that worker.
        ready: numbers of the processes that serve.
        now: current time, in seconds.
        answer: called with the merged metrics.
        """
        self._current[asking] = own
        others = set(ready) - {asking}
        self._rounds.append(_Round(answer, others, now + COLLECT_TIMEOUT))
        # One report serves all rounds that wait for it: concurrent scrapes do not
        # multiply the work.
        for number in others - self._outstanding:
            self._outstanding.add(number)
            self.collect(number)
        # If no other worker is ready, the round is already complete.
        self.finish_rounds(ready, now)

    def add_report(self, number: int, own: Sequence[MetricFamily]) -> None:
        self._current[number] = own
        self._forget(number)

    def end_worker(self, number: int) -> None:
        """Keep the counters of a worker that has ended, as of its last report."""
        # Gauges are dropped: the values they measured, such as running requests, ended
        # with the process.
        ended = keep_cumulative(self._current.pop(number, ()))
        self._ended[number] = merge_families((self._ended.get(number, ()), ended))
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._outstanding.discard(number)
        for item in self._rounds:
            item.missing.discard(number)

    def finish_rounds(self, ready: Sequence[int], now: float) -> None:
        """Answer the rounds that are complete or past their deadline.

        ready: numbers of the workers that serve, and of the engine process.
        """
        finished = [item for item in self._rounds if not item.missing or item.deadline <= now]
        if finished:
            # The engine process serves no HTTP: it would be listed as a worker without
            # requests.
            requests: dict[int, float] = {}
            for number, worker_families in (*self._current.items(), *self._ended.items()):
                if number != ENGINE_NUMBER:
                    requests[number] = requests.get(number, 0.0) + sum(
                        sample.value
                        for family in worker_families
                        if family.name == "http_requests"
                        for sample in family.samples
                    )
            families = [
                *merge_families((*self._current.values(), *self._ended.values())),
                *build_worker_families(len(set(ready) - {ENGINE_NUMBER}), self.restarts, requests),
                *build_engine_families(int(ENGINE_NUMBER in ready), self.engine_restarts),
            ]
            for item in finished:
                self._rounds.remove(item)
                item.answer(families)


def build_worker_families(
    ready: int, restarts: int, requests: dict[int, float]
) -> list[MetricFamily]:
    """Build the metrics of a server with several workers.

    requests: HTTP requests by the number of the worker.
    """
    return [
        MetricFamily(
            "dragoman_workers",
            "Workers that serve.",
            "gauge",
            [MetricSample("dragoman_workers", {}, ready)],
        ),
        MetricFamily(
            "dragoman_worker_restarts",
            "Workers that have died and were replaced.",
            "counter",
            [MetricSample("dragoman_worker_restarts_total", {}, restarts)],
        ),
        MetricFamily(
            "dragoman_worker_requests",
            "HTTP requests by the number of the worker.",
            "counter",
            [
                MetricSample("dragoman_worker_requests_total", {"worker": str(number)}, count)
                for number, count in sorted(requests.items())
            ],
        ),
    ]


def build_engine_families(ready: int, restarts: int | None) -> list[MetricFamily]:
    """Build the metrics of the engine process.

    restarts: None if there is no engine process.
    """
    if restarts is None:
        return []
    return [
        MetricFamily(
            "dragoman_engine_processes",
            "Engine processes that serve.",
            "gauge",
            [MetricSample("dragoman_engine_processes", {}, ready)],
        ),
        MetricFamily(
            "dragoman_engine_restarts",
            "Engine processes that have died and were replaced.",
            "counter",
            [MetricSample("dragoman_engine_restarts_total", {}, restarts)],
        ),
    ]
