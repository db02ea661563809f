"""Estimates of the replicas' loads between their reports."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOAD = "load"


ENDED = "ended"
"""Keys of a replica's reports: requests that run or wait, and all requests that have
ended since its start.
"""


RECENT = 3.0
"""Seconds for which the router counts a request that it sent, unless the replica's
reports already include it.
"""


class LoadEstimates:
    """Estimates of the replicas' loads between their reports, which come every second.

    The estimate is the reported load plus the requests sent since, minus those that
    have probably ended: a replica is assumed to end requests at the same rate as
    between its last two reports.

    now: monotonic clock, seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._reports: dict[str, _Report] = {}
        self._sent: deque[tuple[float, str]] = deque()

    def report(self, replica: str, load: float, ended: float) -> None:
        """Record a replica's report; equal reports in a row count as one.

        load: requests that run or wait.
        ended: all requests that have ended since the replica's start.
        """
        last = self._reports.get(replica)
        now = self._now()
        if last is None or (last.load, last.ended) != (load, ended):
            elapsed = 0.0 if last is None else now - last.time
            rate = max(0.0, ended - last.ended) / elapsed if last is not None and elapsed else 0.0
            self._reports[replica] = _Report(load, ended, now, rate)

    def note_sent(self, replica: str) -> None:
        self._sent.append((self._now(), replica))

    def estimate(self, replicas: Sequence[str]) -> dict[str, float]:
        now = self._now()
        while self._sent and self._sent[0][0] < now - RECENT:
            self._sent.popleft()
        for replica in self._reports.keys() - set(replicas):
            del self._reports[replica]
        loads = {replica: self._reports.get(replica, _NO_REPORT) for replica in replicas}
        sent = Counter(
            replica for time, replica in self._sent if time > loads.get(replica, _NO_REPORT).time
        )
        # Without a report the rate is 0 and the time since the last report infinite:
        # their product would be NaN.
        ended = {
            replica: report.rate * (now - report.time) if report.rate else 0.0
            for replica, report in loads.items()
        }
        return {
            name: report.load + max(0.0, sent[name] - ended[name]) for name, report in loads.items()
        }


@dataclass(frozen=True, slots=True)
class _Report:
    """A replica's report.

    load: requests that run or wait.
    ended: requests that have ended since the replica's start.
    time: when the report came, seconds of the monotonic clock.
    rate: requests that ended per second between the previous report and this one.
    """

    load: float
    ended: float
    time: float
    rate: float


_NO_REPORT = _Report(0.0, 0.0, float("-inf"), 0.0)
