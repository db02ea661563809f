"""The statistics of an engine behind vLLM's metrics: plain numbers, cheap to update.

An engine with its own scheduler updates them itself. For the others the pipeline counts
what it can observe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from .events import FinishReason
from .histogram import Histogram

# vLLM's bucket boundaries (vllm/v1/metrics/loggers.py), so that dashboards for vLLM
# work unchanged.
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
TTFT_BUCKETS = (*_TTFT, 160.0, 640.0, 2560.0)
ITL_BUCKETS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10,
    20,
    40,
    80,
)
_LATENCY = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
LATENCY_BUCKETS = (*_LATENCY, 960.0, 1920.0, 7680.0)
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LENGTH_BUCKETS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
CHOICE_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


class LoraState(Struct, frozen=True):
    """The adapters in use.

    waiting, running: names of the adapters of waiting and running requests.
    max_running: maximum adapters that may run at once.
    """

    waiting: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    max_running: int = 0


class CacheConfig(Struct, frozen=True):
    """The labels of `vllm:cache_config_info`.

    block_size: tokens in a block.
    num_gpu_blocks: number of blocks in the whole pool.
    """

    block_size: int
    num_gpu_blocks: int
    enable_prefix_caching: bool


class KvOffloadStats(Struct, frozen=True):
    """Transfers of KV blocks between device and host memory since the start, and the
    current use of the host's cache.

    load_sizes, store_sizes: bytes of each transfer.
    failed_stores: number of stores for which the cache had no space.
    usage, write_usage: shares of the cache that all transfers, and that stores hold, 0
        to 1.
    """

    load_bytes: float
    load_seconds: float
    load_sizes: Histogram
    store_bytes: float
    store_seconds: float
    store_sizes: Histogram
    failed_stores: int
    usage: float
    write_usage: float


class KvTransferStats(Struct, frozen=True):
    """Transfers of KV blocks between instances since the start, as vLLM's NIXL connector
    counts them.

    seconds: duration of each transfer.
    post_seconds: the part of it before the first byte.
    sizes: bytes of each transfer.
    descriptors: pieces of memory of each transfer.
    expired: requests whose blocks no instance has fetched in time.
    late: notifications of fetches that ended after that.
    """

    seconds: Histogram
    post_seconds: Histogram
    sizes: Histogram
    descriptors: Histogram
    expired: int
    late: int


class EngineStats:
    """Counters since the start and current gauges of one engine core, in seconds and
    tokens.

    sleep_level: 0 is awake.
    faults: injected faults that have occurred, by kind.
    waiting_by_reason, prompt_tokens_by_source, cached_tokens_by_source: None if the
        engine does not tell them apart.
    kv_offload: None without a second tier of the KV cache.
    kv_transfer: None without transfers between instances.
    kv_fetch_by_stage: waiting requests whose blocks another instance has, by the stage
        of the fetch; None for an instance that fetches none.
    drafts, draft_tokens, accepted_tokens, accepted_by_position: counters of speculative
        decoding; None without it.
    longest_choice, request_preemptions, request_computed_tokens: None if the engine
        does not observe them.
    """

    def __init__(self) -> None:
        self.running = self.waiting = self.sleep_level = 0
        self.kv_cache_usage: float | None = None
        self.preemptions: int | None = None
        self.prefix_cache_queries: int | None = None
        self.prefix_cache_hits: int | None = None
        self.external_cache_queries: int | None = None
        self.external_cache_hits: int | None = None
        self.prompt_tokens = self.prompt_tokens_cached = self.generation_tokens = 0
        # Every label exists from the start; otherwise Prometheus' rate() would miss its
        # first increment.
        self.success = dict.fromkeys(_REASON_LABELS.values(), 0)
        # No label of vLLM's: listed once it was used.
        del self.success["cache_threshold"]
        self.faults: dict[str, int] = {}
        self.cache: CacheConfig | None = None
        self.lora: LoraState | None = None
        self.mm_cache_queries: int | None = None
        self.mm_cache_hits: int | None = None
        self.drafts: int | None = None
        self.draft_tokens: int | None = None
        self.accepted_tokens: int | None = None
        self.accepted_by_position: dict[str, int] | None = None
        self.waiting_by_reason: dict[str, int] | None = None
        self.prompt_tokens_by_source: dict[str, int] | None = None
        self.cached_tokens_by_source: dict[str, int] | None = None
        self.kv_offload: KvOffloadStats | None = None
        self.kv_transfer: KvTransferStats | None = None
        self.kv_fetch_by_stage: dict[str, int] | None = None
        self.longest_choice: Histogram | None = None
        self.request_preemptions: Histogram | None = None
        self.request_computed_tokens: Histogram | None = None
        self.iteration_tokens = Histogram(ITERATION_BUCKETS)
        self.ttft = Histogram(TTFT_BUCKETS)
        self.inter_token = Histogram(ITL_BUCKETS)
        self.per_output_token = Histogram(ITL_BUCKETS)
        self.latency = Histogram(LATENCY_BUCKETS)
        self.queue = Histogram(LATENCY_BUCKETS)
        self.inference = Histogram(LATENCY_BUCKETS)
        self.prefill = Histogram(LATENCY_BUCKETS)
        self.decode = Histogram(LATENCY_BUCKETS)
        self.request_prompt_tokens = Histogram(LENGTH_BUCKETS)
        self.request_generation_tokens = Histogram(LENGTH_BUCKETS)
        self.request_max_tokens = Histogram(LENGTH_BUCKETS)
        self.request_choices = Histogram(CHOICE_BUCKETS)

    def record_fault(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1

    def record_finish(self, reason: FinishReason | None) -> None:
        """Count a finished request.

        reason: None if the engine failed.
        """
        label = "error" if reason is None else _REASON_LABELS[reason]
        self.success[label] = self.success.get(label, 0) + 1


_REASON_LABELS: dict[FinishReason | None, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    # vLLM has one label for both limits.
    FinishReason.CONTEXT_LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.CACHE_THRESHOLD: "cache_threshold",
    None: "error",
}


class StatsSource(Protocol):
    """An engine that maintains its own counters."""

    def stats(self) -> Sequence[EngineStats]:
        """Return the counters of each engine core (data-parallel rank).

        Called several times a second, so it must be cheap.
        """
        ...
