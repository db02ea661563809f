"""The metrics of `/metrics`, as its own collectors define them, for `docs/generate.py`
and `deploy/generate.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dragoman.core.engine_stats import (
    LENGTH_BUCKETS,
    CacheConfig,
    EngineStats,
    KvOffloadStats,
    KvTransferStats,
    LoraState,
)
from dragoman.core.histogram import Histogram
from dragoman.launch.multiprocess.metrics_hub import build_engine_families, build_worker_families
from dragoman.pipeline.served_model import RequestQueues
from dragoman.serving.engine_metrics import EngineCollector
from dragoman.serving.http_metrics import HttpMetrics
from dragoman.serving.key_metrics import KeyMetrics
from dragoman.serving.metrics_registry import (
    BuildCollector,
    HttpCollector,
    KeyCollector,
    ModelCollector,
    build_registry,
)
from dragoman.tenants.shared_counters import SharedCounters
from dragoman.tenants.sqlite_limits import SqliteLimits

PROCESS = (
    ("process_cpu_seconds", "counter", "CPU time of the process, in seconds."),
    ("process_open_fds", "gauge", "Open file descriptors."),
    ("process_max_fds", "gauge", "Maximum number of open file descriptors."),
    ("process_resident_memory_bytes", "gauge", "Resident memory."),
    ("process_virtual_memory_bytes", "gauge", "Virtual memory."),
    ("process_start_time_seconds", "gauge", "Start of the process, Unix seconds."),
)
"""Those of prometheus_client's ProcessCollector, which exist on Linux only."""


class MetricDefinition(NamedTuple):
    """name: as in queries, with `_total` of a counter, and without `_bucket` of a
    histogram.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    text: str
    group: str


def list_metrics() -> list[MetricDefinition]:
    """All metrics that a server can have; which ones it has depends on its engines."""
    http = HttpMetrics()
    keys = KeyMetrics()
    keys.shared_counters = SharedCounters(SqliteLimits(Path("limits.db")), lambda: 0.0)
    http.record("POST", "/v1/chat/completions", 200, 1.0, 1, 1)
    keys.find_usage("k", "m")
    keys.count_rejection("k", "requests")
    keys.running["k"] = 0
    meters: Any = [(_Model(), [build_full_stats()])]
    groups: tuple[tuple[str, Collector], ...] = (
        ("Engine", EngineCollector(meters)),
        ("Engine", ModelCollector(cast("Any", _Meters()))),
        ("HTTP", HttpCollector(http)),
        ("API keys", KeyCollector(keys)),
        ("Process", BuildCollector()),
    )
    found = [
        _define(family, group) for group, collector in groups for family in collector.collect()
    ]
    workers = build_registry([*build_worker_families(1, 0, {0: 0.0}), *build_engine_families(1, 0)])
    found += [_define(family, "Workers") for family in workers.collect()]
    process = [
        MetricDefinition(f"{name}_total" if kind == "counter" else name, kind, (), text, "Process")
        for name, kind, text in PROCESS
    ]
    return [*found, *process]


class _Model:
    name = "model"
    is_idle = False
    is_up = True
    n_restarts = 0
    queues = RequestQueues()


class _Meters:
    slots = (_Model(),)


def build_full_stats() -> EngineStats:
    """Counters of an engine that observes everything."""
    stats = EngineStats()
    for name, value in vars(stats).items():
        if value is None:
            setattr(stats, name, 0)
    stats.kv_cache_usage = 0.0
    stats.cache = CacheConfig(16, 1, True)
    stats.lora = LoraState()
    stats.kv_fetch_by_stage = {"x": 0}
    sizes = Histogram(LENGTH_BUCKETS)
    stats.kv_transfer = KvTransferStats(sizes, sizes, sizes, sizes, expired=0, late=0)
    stats.waiting_by_reason = stats.prompt_tokens_by_source = stats.cached_tokens_by_source = {
        "x": 0
    }
    stats.longest_choice = stats.request_preemptions = stats.request_computed_tokens = Histogram(
        LENGTH_BUCKETS
    )
    stats.kv_offload = KvOffloadStats(0.0, 0.0, sizes, 0.0, 0.0, sizes, 0, 0.0, 0.0)
    stats.record_fault("x")
    return stats


def _define(family: Metric, group: str) -> MetricDefinition:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    samples = cast("list[Any]", family.samples)
    labels = tuple(label for label in samples[0].labels if label not in ("le", "quantile"))
    return MetricDefinition(name, family.type, labels, family.documentation, group)


def iterate_sample_names(definition: MetricDefinition) -> Iterator[str]:
    """Names of the samples in a scrape."""
    suffixes = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}.get(
        definition.type, ("",)
    )
    return (definition.name + suffix for suffix in suffixes)
