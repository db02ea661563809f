"""HTTP metrics, and merging of the metrics of several worker processes.

The HTTP metrics have the names of vLLM's `/metrics`. Their paths are route patterns,
which bounds the number of label values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..core.metrics import Histogram

FINE_BUCKETS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    3.5,
    4.0,
    4.5,
    5.0,
    7.5,
    10.0,
    30.0,
    60.0,
)
COARSE_BUCKETS = (0.1, 0.5, 1.0)
EXCLUDED_PATHS = frozenset(
    {
        "/metrics",
        "/health",
        "/healthz",
        "/livez",
        "/load",
        "/ping",
        "/readyz",
        "/version",
        "/server_info",
    }
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMetrics:
    """Counters and histograms of HTTP requests.

    requests: by method, status class (`2xx`) and path.
    request_sizes, response_sizes: number and total bytes, by path.
    durations: seconds of all requests to the end of the response.
    route_durations: the same by method and path, with coarse buckets.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.request_sizes: dict[str, tuple[int, int]] = {}
        self.response_sizes: dict[str, tuple[int, int]] = {}
        self.durations = Histogram(FINE_BUCKETS)
        self.route_durations: dict[tuple[str, str], Histogram] = {}

    def record(
        self,
        method: str,
        path: str,
        status: int,
        seconds: float,
        request_bytes: int,
        response_bytes: int,
    ) -> None:
        """Record a completed request.

        path: the route's pattern, or `*` if there is none.
        request_bytes, response_bytes: by Content-Length; 0 without one (a stream has
            none).
        """
        if path in EXCLUDED_PATHS:
            return
        path = "none" if path == "*" else path
        # Clients choose the method, and every new label value costs memory for ever.
        method = method if method in _METHODS else "other"
        self.requests[method, f"{status // 100}xx", path] += 1
        for sizes, size in (
            (self.request_sizes, request_bytes),
            (self.response_sizes, response_bytes),
        ):
            count, total = sizes.get(path, (0, 0))
            sizes[path] = count + 1, total + size
        self.durations.observe(seconds)
        if (method, path) not in self.route_durations:
            self.route_durations[method, path] = Histogram(COARSE_BUCKETS)
        self.route_durations[method, path].observe(seconds)


# Metrics of several worker processes as one: metric families as plain values, and how
# they add up.

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


def read_families(registry: CollectorRegistry) -> list[MetricFamily]:
    return [
        MetricFamily(
            family.name,
            family.documentation,
            family.type,
            [
                MetricSample(sample.name, sample.labels, float(sample.value))
                for sample in family.samples
            ],
        )
        for family in registry.collect()
    ]


def build_registry(families: Sequence[MetricFamily]) -> CollectorRegistry:
    """A registry with these values, for prometheus_client's encoders."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FixedCollector(families))
    return registry


class _FixedCollector(Collector):
    def __init__(self, families: Sequence[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.type)
            for sample in family.samples:
                metric.add_sample(sample.name, dict(sample.labels), sample.value)
            yield metric


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
