"""The metrics in the model of prometheus_client, which takes long to import: only
what a scrape needs imports this module.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from .._version import VERSION
from ..pipeline.request_metrics import ModelMetrics
from .engine_metrics import EngineCollector, build_histogram
from .http_metrics import HttpMetrics
from .key_metrics import KeyMetrics, KeyUsage
from .merged_metrics import MetricFamily, MetricSample

KEY_PREFIX = "dragoman:key_"
"""Begins the names of the metrics that name API keys."""


def build_server_registry(
    meters: ModelMetrics, http_metrics: HttpMetrics, key_metrics: KeyMetrics
) -> CollectorRegistry:
    """Build the registry of this process."""
    # `auto_describe` would run each collector when it is registered.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(meters))
    registry.register(ModelCollector(meters))
    registry.register(HttpCollector(http_metrics))
    registry.register(KeyCollector(key_metrics))
    registry.register(BuildCollector())
    # CPU, memory and file descriptors of this process, on Linux.
    ProcessCollector(registry=registry)
    return registry


def encode_metrics(
    registry: CollectorRegistry, accept: str, *, shows_keys: bool
) -> tuple[bytes, str]:
    """Encode the metrics, and return their content type too.

    accept: the request's header, which chooses the format.
    shows_keys: whether metrics that name keys are included.
    """
    encode, content_type = choose_encoder(accept)
    options: dict[str, object] = {}
    if "escaping" in getattr(encode, "keywords", ()):
        # All names are valid without escaping. The escaping that Prometheus 2 gets
        # by default would turn the colon of `vllm:` into an underscore
        # (prometheus_client 0.26), and no query or alert would find these metrics.
        options["escaping"] = ALLOWUTF8
    if not shows_keys:
        public_registry = CollectorRegistry(auto_describe=False)
        public_registry.register(PublicMetrics(registry))
        registry = public_registry
    return encode(registry, **options), content_type


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


class HttpCollector(Collector):
    """Collects the HTTP metrics, with the names that vLLM has from
    prometheus-fastapi-instrumentator.
    """

    def __init__(self, http_metrics: HttpMetrics) -> None:
        self._http_metrics = http_metrics

    def collect(self) -> Iterator[Metric]:
        http_metrics = self._http_metrics
        requests = CounterMetricFamily(
            "http_requests",
            "Requests by method, status and path.",
            labels=("method", "status", "handler"),
        )
        for labels, count in http_metrics.count_requests().items():
            requests.add_metric(labels, count)
        yield requests
        sizes = http_metrics.sum_sizes()
        for index, name in enumerate(("request", "response"), start=1):
            text = "Bytes from the Content-Length header, if present."
            family = SummaryMetricFamily(f"http_{name}_size_bytes", text, labels=("handler",))
            for path, totals in sizes.items():
                family.add_metric((path,), totals[0], totals[index])
            yield family
        fine = "http_request_duration_highr_seconds"
        yield build_histogram(
            fine, "To the end of an answer.", [((), http_metrics.sum_durations())], ()
        )
        coarse = "http_request_duration_seconds"
        yield build_histogram(
            coarse,
            "The same by method and path.",
            http_metrics.list_durations(),
            ("method", "handler"),
        )


class KeyCollector(Collector):
    """Collects usage and rejections by API key."""

    def __init__(self, key_metrics: KeyMetrics) -> None:
        self._key_metrics = key_metrics

    def collect(self) -> Iterator[Metric]:
        for name, text, read in _KEY_COUNTERS:
            family = CounterMetricFamily(f"{KEY_PREFIX}{name}", text, labels=("key", "model_name"))
            for labels, usage in self._key_metrics.usage.items():
                family.add_metric(labels, read(usage))
            yield family
        rejections = CounterMetricFamily(
            f"{KEY_PREFIX}rejections",
            "Requests rejected by a limit of their key.",
            labels=("key", "limit"),
        )
        for labels, count in self._key_metrics.rejected.items():
            rejections.add_metric(labels, count)
        yield rejections
        running = GaugeMetricFamily(
            f"{KEY_PREFIX}requests_running", "Requests of a key in progress.", labels=("key",)
        )
        for key, count in self._key_metrics.running.items():
            running.add_metric((key,), count)
        yield running
        shared = self._key_metrics.shared_counters
        if shared is not None:
            failing = GaugeMetricFamily(
                "dragoman:limits_store_failing",
                "Processes that apply the limits alone, since the store of the limits does not "
                "respond.",
            )
            failing.add_metric((), float(shared.is_failing))
            yield failing
            errors = CounterMetricFamily(
                "dragoman:limits_store_errors", "Failed calls of the store of the limits."
            )
            errors.add_metric((), shared.errors)
            yield errors


class ModelCollector(Collector):
    """Collects the states of the models' engines."""

    def __init__(self, meters: ModelMetrics) -> None:
        self._meters = meters

    def collect(self) -> Iterator[Metric]:
        ups = GaugeMetricFamily(
            "dragoman:engine_up",
            "1 while the model's engine is ready; with several workers, in every worker. "
            "Absent for a model on demand that is not loaded.",
            labels=("model_name",),
        )
        restarts = CounterMetricFamily(
            "dragoman:engine_restarts",
            "Restarts of the model's engine after it failed, by this server's only process.",
            labels=("model_name",),
        )
        for slot in self._meters.slots:
            # A model that no request needs is not down.
            if not slot.is_idle:
                ups.add_metric((slot.name,), float(slot.is_up))
            restarts.add_metric((slot.name,), slot.n_restarts)
        yield ups
        yield restarts


class PublicMetrics(Collector):
    """The metrics that need no key: those that name no API key."""

    def __init__(self, metrics: CollectorRegistry) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for family in self._metrics.collect():
            if not family.name.startswith(KEY_PREFIX):
                yield family


class BuildCollector(Collector):
    """Collects the version, as labels of a metric whose value is 1."""

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "dragoman_build_info",
            "The server's version; the value is 1.",
            labels=("version", "python_version"),
        )
        family.add_metric((VERSION, platform.python_version()), 1.0)
        yield family


_KEY_COUNTERS: tuple[tuple[str, str, Callable[[KeyUsage], int]], ...] = (
    ("requests", "Requests of a key that reached an engine.", lambda usage: usage.requests),
    ("prompt_tokens", "Prompt tokens of a key.", lambda usage: usage.prompt_tokens),
    ("generation_tokens", "Generated tokens of a key.", lambda usage: usage.generation_tokens),
)
