"""Upper limits on statistics of a whole workload, such as `p99 ttft < 1s`."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman_check.load.load_statistics import Spread

from .simulation_report import Report

Statistic = Literal["mean", "p50", "p90", "p95", "p99"]


Metric = Literal["ttft", "itl", "tpot", "latency"]


# Such as `p99 ttft < 1s`.
_OBJECTIVE = re.compile(
    r"(mean|p50|p90|p95|p99)\s+(ttft|itl|tpot|latency|e2e|e2el)\s*<=?\s*([0-9.]+)\s*(us|ms|s)"
)


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class PlanError(ValueError):
    """A plan cannot be computed; the message gives the reason."""


class Objective(Struct, frozen=True):
    """An upper limit on a statistic of the whole workload, such as `p99 ttft < 1s`.

    limit: seconds.
    """

    statistic: Statistic
    metric: Metric
    limit: float

    def read(self, report: Report) -> float:
        spread: Spread = getattr(report, self.metric)
        return getattr(spread, self.statistic)

    def is_met(self, report: Report) -> bool:
        return self.read(report) <= self.limit

    def __str__(self) -> str:
        return f"{self.statistic} {self.metric} < {self.limit * 1000:g} ms"


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parse `p99 ttft < 1s, p99 itl < 50ms`. Raises PlanError."""
    objectives: list[Objective] = []
    for part in text.split(","):
        match = _OBJECTIVE.fullmatch(part.strip().lower())
        if match is None:
            raise PlanError(
                f"{part.strip()!r} is not an objective; use STATISTIC METRIC < TIME, such as `p99 "
                f"ttft < 1s`, "
                "with one of mean, p50, p90, p95, p99; ttft, itl, tpot, latency; us, ms, s"
            )
        statistic, metric, value, unit = match.groups()
        metric = "latency" if metric.startswith("e2e") else metric
        seconds = float(value) * _UNITS[unit]
        objectives.append(
            Objective(
                msgspec.convert(statistic, Statistic), msgspec.convert(metric, Metric), seconds
            )
        )
    return tuple(objectives)
