"""Merging of the metrics of several worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

CUMULATIVE = frozenset({"counter", "histogram", "summary"})
"""Types whose values only grow, so that those of a worker that has ended still count.
"""


class MetricSample(Struct, array_like=True, frozen=True):
    """One value. name: with the suffix of its type, such as `_total` or `_bucket`."""

    name: str
    labels: Mapping[str, str]
    value: float


class MetricFamily(Struct, array_like=True, frozen=True):
    """The samples of one metric. name: of a counter without `_total`."""

    name: str
    text: str
    type: str
    samples: Sequence[MetricSample]


class MetricsExchange(Protocol):
    """Connects the workers of a server, so that each can show the metrics of all."""

    def provide(self, read: Callable[[], Sequence[MetricFamily]]) -> None:
        """Set what reads the metrics of this worker."""
        ...

    async def merge(self) -> Sequence[MetricFamily]:
        """Return the metrics of all workers.

        Raises:
            ConnectionError: the other workers cannot be reached.
        """
        ...


def merge_families(sources: Iterable[Sequence[MetricFamily]]) -> list[MetricFamily]:
    """Merge the samples that have the same name and labels.

    Counters, histograms and gauges are summed, except for gauges of ratios (`_perc`:
    the mean), of `process_start_time_seconds` and `_up` (the minimum), and of `_info`
    and `_state`, which are equal in all workers.
    """
    families: dict[str, MetricFamily] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]] = {}
    for source in sources:
        for family in source:
            families.setdefault(family.name, family)
            by_sample = values.setdefault(family.name, {})
            for sample in family.samples:
                # Workers need not emit labels in the same order.
                key = sample.name, tuple(sorted(sample.labels.items()))
                by_sample.setdefault(key, []).append(sample.value)
    merged: list[MetricFamily] = []
    for name, family in families.items():
        combine: Callable[[Sequence[float]], float] = sum
        if family.type not in CUMULATIVE:
            if family.name.endswith("_perc"):
                combine = _mean
            elif family.name.endswith(("_info", "_state")):
                combine = max
            elif family.name.endswith("_up") or family.name == "process_start_time_seconds":
                combine = min
        samples = [
            MetricSample(sample_name, dict(labels), combine(sample_values))
            for (sample_name, labels), sample_values in values[name].items()
        ]
        merged.append(MetricFamily(name, family.text, family.type, samples))
    return merged


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def keep_cumulative(families: Sequence[MetricFamily]) -> list[MetricFamily]:
    """The metrics of an ended worker that remain valid."""
    return [family for family in families if family.type in CUMULATIVE]
