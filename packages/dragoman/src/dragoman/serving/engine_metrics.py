"""The metrics of engine cores, in Prometheus' model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..core.engine_stats import EngineStats, KvOffloadStats, KvTransferStats
from ..core.histogram import Histogram
from ..pipeline.served_model import ServedModel

CoreStats = list[tuple[tuple[str, str], EngineStats]]
"""Label values (model name, number of the engine core), and the counters of this core.
"""


LABELS = ("model_name", "engine")


_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""Names of the sleep states; the index is the sleep level."""


T = TypeVar("T")


def _read_offload(read: Callable[[KvOffloadStats], T]) -> Callable[[EngineStats], T | None]:
    """Build a function that reads a value of the second tier of the KV cache; None if
    the engine has no such tier.
    """
    return lambda stats: None if stats.kv_offload is None else read(stats.kv_offload)


def _read_transfer(read: Callable[[KvTransferStats], T]) -> Callable[[EngineStats], T | None]:
    """Build a function that reads a value of the transfers between instances; None if
    the engine has none.
    """
    return lambda stats: None if stats.kv_transfer is None else read(stats.kv_transfer)


_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float | None]], ...] = (
    ("num_requests_running", "Requests in the running batch.", lambda stats: stats.running),
    ("num_requests_waiting", "Requests waiting to be scheduled.", lambda stats: stats.waiting),
    (
        "kv_cache_usage_perc",
        "Share of the KV cache in use; 1 is full.",
        lambda stats: stats.kv_cache_usage,
    ),
    (
        "kv_offload_cpu_cache_usage_perc",
        "Share of the KV cache in host memory that transfers hold.",
        _read_offload(lambda offload: offload.usage),
    ),
    (
        "kv_offload_cpu_cache_write_usage_perc",
        "Share of it that stores hold.",
        _read_offload(lambda offload: offload.write_usage),
    ),
    (
        "kv_offload_cpu_cache_read_usage_perc",
        "Share of it that loads hold.",
        _read_offload(lambda offload: offload.usage - offload.write_usage),
    ),
)


_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float | None]], ...] = (
    ("num_preemptions", "Preempted requests.", lambda stats: stats.preemptions),
    (
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda stats: stats.prefix_cache_queries,
    ),
    (
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda stats: stats.prefix_cache_hits,
    ),
    (
        "external_prefix_cache_queries",
        "Prompt tokens looked up in host memory or another instance.",
        lambda stats: stats.external_cache_queries,
    ),
    (
        "external_prefix_cache_hits",
        "Prompt tokens received from there.",
        lambda stats: stats.external_cache_hits,
    ),
    (
        "kv_offload_load_bytes",
        "Bytes loaded from host memory.",
        _read_offload(lambda offload: offload.load_bytes),
    ),
    (
        "kv_offload_load_time",
        "Seconds of these loads.",
        _read_offload(lambda offload: offload.load_seconds),
    ),
    (
        "kv_offload_store_bytes",
        "Bytes stored in host memory.",
        _read_offload(lambda offload: offload.store_bytes),
    ),
    (
        "kv_offload_store_time",
        "Seconds of these stores.",
        _read_offload(lambda offload: offload.store_seconds),
    ),
    (
        "kv_offload_allocation_failure",
        "Stores for which host memory had no room.",
        _read_offload(lambda offload: offload.failed_stores),
    ),
    (
        "nixl_num_failed_transfers",
        "Fetches of blocks that failed; simulated ones do not.",
        _read_transfer(lambda _: 0),
    ),
    (
        "nixl_num_failed_notifications",
        "Notifications of fetches that failed; simulated ones do not.",
        _read_transfer(lambda _: 0),
    ),
    (
        "nixl_num_kv_expired_reqs",
        "Requests whose blocks no instance has fetched in time.",
        _read_transfer(lambda transfer: transfer.expired),
    ),
    (
        "nixl_num_notifications_after_expiry",
        "Notifications of fetches that ended after that.",
        _read_transfer(lambda transfer: transfer.late),
    ),
    (
        "mm_cache_queries",
        "Media looked up in the cache of their inputs.",
        lambda stats: stats.mm_cache_queries,
    ),
    (
        "mm_cache_hits",
        "Media found in the cache of their inputs.",
        lambda stats: stats.mm_cache_hits,
    ),
    ("prompt_tokens", "Prompt tokens processed.", lambda stats: stats.prompt_tokens),
    (
        "prompt_tokens_cached",
        "Prompt tokens that were not computed.",
        lambda stats: stats.prompt_tokens_cached,
    ),
    ("generation_tokens", "Tokens generated.", lambda stats: stats.generation_tokens),
    (
        "spec_decode_num_drafts",
        "Steps of requests with speculative tokens.",
        lambda stats: stats.drafts,
    ),
    (
        "spec_decode_num_draft_tokens",
        "Speculative tokens verified.",
        lambda stats: stats.draft_tokens,
    ),
    (
        "spec_decode_num_accepted_tokens",
        "Speculative tokens accepted.",
        lambda stats: stats.accepted_tokens,
    ),
)


_SPLIT_GAUGES: tuple[
    tuple[str, str, str, Callable[[EngineStats], Mapping[str, int] | None]], ...
] = (
    (
        "num_requests_waiting_by_reason",
        "reason",
        "The same by reason.",
        lambda stats: stats.waiting_by_reason,
    ),
    (
        "num_requests_kv_fetch_by_stage",
        "stage",
        "Waiting requests whose blocks another instance has.",
        lambda stats: stats.kv_fetch_by_stage,
    ),
)


_SPLIT_COUNTERS: tuple[
    tuple[str, str, str, Callable[[EngineStats], Mapping[str, int] | None]], ...
] = (
    (
        "prompt_tokens_by_source",
        "source",
        "Prompt tokens by source.",
        lambda stats: stats.prompt_tokens_by_source,
    ),
    (
        "prompt_tokens_cached_by_source",
        "source",
        "Prompt tokens that were not computed, by the cache that had them.",
        lambda stats: stats.cached_tokens_by_source,
    ),
    (
        "spec_decode_num_accepted_tokens_per_pos",
        "position",
        "Speculative tokens accepted, by position.",
        lambda stats: stats.accepted_by_position,
    ),
)


_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineStats], Histogram | None]], ...] = (
    ("iteration_tokens_total", "Tokens of a step.", lambda stats: stats.iteration_tokens),
    ("time_to_first_token_seconds", "From arrival to the first token.", lambda stats: stats.ttft),
    (
        "inter_token_latency_seconds",
        "Between two tokens of a request.",
        lambda stats: stats.inter_token,
    ),
    (
        "request_time_per_output_token_seconds",
        "Mean time between tokens of a request.",
        lambda stats: stats.per_output_token,
    ),
    ("e2e_request_latency_seconds", "From arrival to the end.", lambda stats: stats.latency),
    ("request_queue_time_seconds", "Waiting to be scheduled.", lambda stats: stats.queue),
    (
        "request_inference_time_seconds",
        "From being scheduled to the end.",
        lambda stats: stats.inference,
    ),
    (
        "request_prefill_time_seconds",
        "From being scheduled to the first token.",
        lambda stats: stats.prefill,
    ),
    (
        "request_decode_time_seconds",
        "From the first token to the last.",
        lambda stats: stats.decode,
    ),
    ("request_prompt_tokens", "Tokens of a prompt.", lambda stats: stats.request_prompt_tokens),
    (
        "request_generation_tokens",
        "Tokens of an answer.",
        lambda stats: stats.request_generation_tokens,
    ),
    (
        "request_params_max_tokens",
        "max_tokens of a request.",
        lambda stats: stats.request_max_tokens,
    ),
    ("request_params_n", "n of a request.", lambda stats: stats.request_choices),
    (
        "request_max_num_generation_tokens",
        "Tokens of a request's longest answer.",
        lambda stats: stats.longest_choice,
    ),
    (
        "request_num_preemptions",
        "Preemptions of a request.",
        lambda stats: stats.request_preemptions,
    ),
    (
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of a request that were computed.",
        lambda stats: stats.request_computed_tokens,
    ),
    (
        "kv_offload_load_size",
        "Bytes of a load.",
        _read_offload(lambda offload: offload.load_sizes),
    ),
    (
        "kv_offload_store_size",
        "Bytes of a store.",
        _read_offload(lambda offload: offload.store_sizes),
    ),
    (
        "nixl_xfer_time_seconds",
        "Duration of a fetch of blocks.",
        _read_transfer(lambda transfer: transfer.seconds),
    ),
    (
        "nixl_post_time_seconds",
        "The part of it before the first byte.",
        _read_transfer(lambda transfer: transfer.post_seconds),
    ),
    (
        "nixl_bytes_transferred",
        "Bytes of a fetch.",
        _read_transfer(lambda transfer: transfer.sizes),
    ),
    (
        "nixl_num_descriptors",
        "Pieces of memory of a fetch.",
        _read_transfer(lambda transfer: transfer.descriptors),
    ),
)


class EngineCollector(Collector):
    """Collects the engines' counters at scrape time.

    now: Unix time in seconds.
    """

    def __init__(
        self,
        meters: Iterable[tuple[ServedModel, Sequence[EngineStats]]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._meters = meters
        self._now = now

    def collect(self) -> Iterator[Metric]:
        cores: CoreStats = [
            ((model.name, str(number)), stats)
            for model, stats_by_core in self._meters
            for number, stats in enumerate(stats_by_core)
        ]
        for name, text, read in _GAUGES:
            yield from _build_samples(
                GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS), cores, read
            )
        for name, text, read in _COUNTERS:
            yield from _build_samples(
                CounterMetricFamily(f"vllm:{name}", text, labels=LABELS), cores, read
            )
        for name, label, text, read_parts in _SPLIT_GAUGES:
            yield from _build_parts(
                GaugeMetricFamily(f"vllm:{name}", text, labels=(*LABELS, label)), cores, read_parts
            )
        for name, label, text, read_parts in _SPLIT_COUNTERS:
            yield from _build_parts(
                CounterMetricFamily(f"vllm:{name}", text, labels=(*LABELS, label)),
                cores,
                read_parts,
            )
        for name, text, read_histogram in _HISTOGRAMS:
            observed = [
                (labels, histogram)
                for labels, stats in cores
                if (histogram := read_histogram(stats))
            ]
            # Families without samples are listed while no model is loaded, so that
            # dashboards can be built already.
            if observed or not cores:
                yield build_histogram(f"vllm:{name}", text, observed)
        successes = CounterMetricFamily(
            "vllm:request_success", "Requests that ended.", labels=(*LABELS, "finished_reason")
        )
        yield from _build_parts(
            successes, cores, lambda stats: stats.success, is_always_listed=True
        )
        sleep = GaugeMetricFamily(
            "vllm:engine_sleep_state", "1 for the current state.", labels=(*LABELS, "sleep_state")
        )
        yield from _build_parts(
            sleep,
            cores,
            lambda stats: {
                state: int(stats.sleep_level == level) for level, state in enumerate(_SLEEP_STATES)
            },
            is_always_listed=True,
        )
        faults = CounterMetricFamily(
            "dragoman:faults", "Injected faults.", labels=(*LABELS, "kind")
        )
        yield from _build_parts(faults, cores, lambda stats: stats.faults)
        yield from self._build_rejections()
        yield from _build_infos(cores, self._now())

    def _build_rejections(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "vllm:admission_rejections",
            "Requests that a limit of the queue has rejected.",
            labels=("model_name", "reason"),
        )
        for model, _ in self._meters:
            for reason, count in model.queues.generation.rejections.items():
                family.add_metric((model.name, reason), count)
        if family.samples:
            yield family


def _build_samples(
    family: GaugeMetricFamily | CounterMetricFamily,
    cores: CoreStats,
    read: Callable[[EngineStats], float | None],
) -> Iterator[Metric]:
    """Yield the family with the value of each core; nothing if no engine reports the
    value.
    """
    for labels, stats in cores:
        value = read(stats)
        if value is not None:
            family.add_metric(labels, value)
    if family.samples:
        yield family


def _build_parts(
    family: GaugeMetricFamily | CounterMetricFamily,
    cores: CoreStats,
    read: Callable[[EngineStats], Mapping[str, int] | None],
    *,
    is_always_listed: bool = False,
) -> Iterator[Metric]:
    """Yield the family with each core's value split by the last label.

    is_always_listed: yield the family even if it has no samples.
    """
    for labels, stats in cores:
        for part, value in (read(stats) or {}).items():
            family.add_metric((*labels, part), value)
    if family.samples or is_always_listed:
        yield family


def build_histogram(
    name: str,
    text: str,
    observed: Iterable[tuple[tuple[str, ...], Histogram]],
    names: tuple[str, ...] = LABELS,
) -> Metric:
    """Build a histogram family.

    observed: label values with their histogram.
    names: label names.
    """
    family = HistogramMetricFamily(name, text, labels=names)
    for labels, histogram in observed:
        # Prometheus' buckets are cumulative.
        total = 0
        buckets = list[tuple[str, float]]()
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family.add_metric(labels, buckets, histogram.sum)
    return family


def _build_infos(cores: CoreStats, now: float) -> Iterator[Metric]:
    """Yield the info families: their labels hold the information. As in vLLM, they have
    no label `model_name`.
    """
    cache_labels = ("block_size", "num_gpu_blocks", "enable_prefix_caching", "engine")
    caches = GaugeMetricFamily(
        "vllm:cache_config_info", "The KV cache's settings.", labels=cache_labels
    )
    lora_labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
    loras = GaugeMetricFamily(
        "vllm:lora_requests_info", "Adapters in use; the value is the time.", labels=lora_labels
    )
    for (_, engine), stats in cores:
        if (cache := stats.cache) is not None:
            values = (
                str(cache.block_size),
                str(cache.num_gpu_blocks),
                str(cache.enable_prefix_caching),
                engine,
            )
            caches.add_metric(values, 1.0)
        if (lora := stats.lora) is not None:
            loras.add_metric(
                (str(lora.max_running), ",".join(lora.waiting), ",".join(lora.running)), now
            )
    yield from (family for family in (caches, loras) if family.samples)
