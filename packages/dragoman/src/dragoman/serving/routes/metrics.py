"""The route `/metrics`, with vLLM's names in Prometheus' formats.

This module only renders the metrics; other modules count.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

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

from ..._version import VERSION
from ...dialects.openai_errors import OPENAI_ERRORS
from ...pipeline.request_metrics import ModelMetrics
from ..api_description import TEXT, ApiResponse
from ..auth import Access
from ..engine_metrics import EngineCollector, build_histogram
from ..handler_result import JsonResponse
from ..http_metrics import HttpMetrics
from ..http_request import HttpRequest
from ..key_metrics import KeyMetrics, KeyUsage
from ..merged_metrics import MetricsExchange, build_registry, read_families
from ..responder import Responder
from ..route import Handler, Route, RouteGroup

KEY_PREFIX = "dragoman:key_"
"""Begins the names of the metrics that name API keys."""


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
        for labels, count in http_metrics.requests.items():
            requests.add_metric(labels, count)
        yield requests
        for name, sizes in (
            ("request", http_metrics.request_sizes),
            ("response", http_metrics.response_sizes),
        ):
            text = "Bytes from the Content-Length header, if present."
            family = SummaryMetricFamily(f"http_{name}_size_bytes", text, labels=("handler",))
            for path, (count, total) in sizes.items():
                family.add_metric((path,), count, total)
            yield family
        fine = "http_request_duration_highr_seconds"
        yield build_histogram(fine, "To the end of an answer.", [((), http_metrics.durations)], ())
        coarse = "http_request_duration_seconds"
        yield build_histogram(
            coarse,
            "The same by method and path.",
            http_metrics.route_durations.items(),
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


def build_routes(
    meters: ModelMetrics,
    http_metrics: HttpMetrics,
    key_metrics: KeyMetrics,
    exchange: MetricsExchange | None = None,
) -> Sequence[Route]:
    """Build the route `/metrics`.

    exchange: adds the metrics of the server's other worker processes; None if there are
        none.
    """
    handler = build_metrics_handler(meters, http_metrics, key_metrics, exchange)
    routes = RouteGroup("Server", OPENAI_ERRORS, Access.PUBLIC)
    routes.add(
        "GET",
        "/metrics",
        handler,
        "Read the metrics, in Prometheus' format",
        ApiResponse(media=TEXT),
    )
    return routes.build()


def build_metrics_handler(
    meters: ModelMetrics,
    http_metrics: HttpMetrics,
    key_metrics: KeyMetrics,
    exchange: MetricsExchange | None = None,
) -> Handler:
    """Build the handler of `/metrics`; the Accept header chooses the format. The
    metrics that name keys are for administrators and keys of the role `metrics`.
    """
    # `auto_describe` would run each collector when it is registered.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(meters))
    registry.register(ModelCollector(meters))
    registry.register(HttpCollector(http_metrics))
    registry.register(KeyCollector(key_metrics))
    registry.register(BuildCollector())
    # CPU, memory and file descriptors of this process, on Linux.
    ProcessCollector(registry=registry)
    if exchange is not None:
        exchange.provide(lambda: read_families(registry))

    async def handle(http: HttpRequest) -> JsonResponse | Responder:
        encode, content_type = choose_encoder(http.headers.get("accept", ""))
        options: dict[str, object] = {}
        if "escaping" in getattr(encode, "keywords", ()):
            # All names are valid without escaping. The escaping that Prometheus 2 gets
            # by default would turn the colon of `vllm:` into an underscore
            # (prometheus_client 0.26), and no query or alert would find these metrics.
            options["escaping"] = ALLOWUTF8
        merged_registry = registry
        if exchange is not None:
            # Without its supervisor a worker shuts down; until then it reports only its
            # own metrics.
            with suppress(ConnectionError):
                merged_registry = build_registry(await exchange.merge())
        # The names of keys, and what they run, are not for strangers.
        caller = http.caller
        sees_keys = caller.is_admin or caller.is_monitor or http.service.tenancy.keyring.is_open
        if not sees_keys:
            public_registry = CollectorRegistry(auto_describe=False)
            public_registry.register(PublicMetrics(merged_registry))
            merged_registry = public_registry
        return JsonResponse(
            encode(merged_registry, **options),
            content_type=(b"content-type", content_type.encode()),
        )

    return handle
