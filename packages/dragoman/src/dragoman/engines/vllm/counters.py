"""Counters of vLLM's engine cores, which survive a restart of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.engine_stats import CacheConfig, EngineStats, LoraState
from . import backend
from .backend import IterationStats, SchedulerStats, VllmConfig


class VllmCounters:
    """One EngineStats for each engine core of vLLM. The counters survive a restart of
    the engine.
    """

    def __init__(self) -> None:
        self._cores: dict[int, EngineStats] = {}
        self._max_loras = 0

    def list_all(self) -> Sequence[EngineStats]:
        return list(self._cores.values()) or [self.get_core(0)]

    def get_core(self, index: int) -> EngineStats:
        return self._cores.setdefault(index, EngineStats())

    def build_logger_class(self) -> type:
        """Build a stat logger class that records here.

        It is a subclass of the Prometheus logger, because vLLM adds its own one
        otherwise.
        """
        counters = self

        class ForwardingLogger(backend.loggers.PrometheusStatLogger):  # pyright: ignore[reportUntypedBaseClass]
            def __init__(
                self, vllm_config: VllmConfig, engine_indexes: list[int] | None = None
            ) -> None:  # pyright: ignore[reportMissingSuperCall]
                counters.initialize(vllm_config, engine_indexes or [0])

            def record(
                self,
                scheduler_stats: SchedulerStats,
                iteration_stats: IterationStats,
                mm_cache_stats: object = None,  # noqa: ARG002
                engine_idx: int = 0,
            ) -> None:
                counters.record(scheduler_stats, iteration_stats, engine_idx)

            def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
                counters.set_sleep_level(level if sleep else 0)

            def log_engine_initialized(self) -> None:
                pass

            def record_admission_rejection(self, reason: str) -> None:
                pass

        return ForwardingLogger

    def initialize(self, config: VllmConfig, indexes: Sequence[int]) -> None:
        cache = config.cache_config
        self._max_loras = 0 if config.lora_config is None else config.lora_config.max_loras
        for index in indexes:
            stats = self.get_core(index)
            stats.preemptions = stats.preemptions or 0
            stats.prefix_cache_queries = stats.prefix_cache_queries or 0
            stats.prefix_cache_hits = stats.prefix_cache_hits or 0
            stats.kv_cache_usage = 0.0
            stats.running = stats.waiting = stats.sleep_level = 0
            if cache.num_gpu_blocks is not None:
                stats.cache = CacheConfig(
                    cache.block_size, cache.num_gpu_blocks, bool(cache.enable_prefix_caching)
                )

    def set_sleep_level(self, level: int) -> None:
        for stats in self._cores.values():
            stats.sleep_level = level

    def record(self, scheduler: SchedulerStats, iteration: IterationStats, index: int) -> None:
        """Record the counters of a step. vLLM calls this after each step, on the event
        loop.
        """
        stats = self.get_core(index)
        if iteration is not None:
            _count_iteration(stats, iteration)
        if scheduler is None:
            return
        stats.running = scheduler.num_running_reqs
        stats.waiting = scheduler.num_waiting_reqs
        stats.kv_cache_usage = scheduler.kv_cache_usage
        prefix = scheduler.prefix_cache_stats
        external = scheduler.connector_prefix_cache_stats
        stats.prefix_cache_queries = (stats.prefix_cache_queries or 0) + prefix.queries
        stats.prefix_cache_hits = (stats.prefix_cache_hits or 0) + prefix.hits
        if external is not None:
            stats.external_cache_queries = (stats.external_cache_queries or 0) + external.queries
            stats.external_cache_hits = (stats.external_cache_hits or 0) + external.hits
        if (drafts := scheduler.spec_decoding_stats) is not None:
            stats.drafts = (stats.drafts or 0) + drafts.num_drafts
            stats.draft_tokens = (stats.draft_tokens or 0) + drafts.num_draft_tokens
            stats.accepted_tokens = (stats.accepted_tokens or 0) + drafts.num_accepted_tokens
            counts = stats.accepted_by_position = stats.accepted_by_position or {}
            for position, count in enumerate(drafts.num_accepted_tokens_per_pos):
                counts[str(position)] = counts.get(str(position), 0) + count
        if self._max_loras:
            waiting = scheduler.waiting_lora_adapters
            running = scheduler.running_lora_adapters
            stats.lora = LoraState(tuple(waiting), tuple(running), self._max_loras)


def _count_iteration(stats: EngineStats, iteration: IterationStats) -> None:
    prompts = iteration.prompt_token_stats
    stats.prompt_tokens += prompts.total
    stats.prompt_tokens_cached += prompts.cached_tokens
    stats.generation_tokens += iteration.num_generation_tokens
    stats.preemptions = (stats.preemptions or 0) + iteration.num_preempted_reqs
    stats.iteration_tokens.observe(prompts.total + iteration.num_generation_tokens)
    for seconds in iteration.time_to_first_tokens_iter:
        stats.ttft.observe(seconds)
    for seconds in iteration.inter_token_latencies_iter:
        stats.inter_token.observe(seconds)
    for finished in iteration.finished_requests:
        reason = str(finished.finish_reason)
        stats.success[reason if reason in stats.success else "stop"] += 1
        stats.latency.observe(finished.e2e_latency)
        stats.queue.observe(finished.queued_time)
        stats.prefill.observe(finished.prefill_time)
        stats.inference.observe(finished.inference_time)
        stats.decode.observe(finished.decode_time)
        stats.per_output_token.observe(finished.mean_time_per_output_token)
        stats.request_prompt_tokens.observe(finished.num_prompt_tokens)
        stats.request_generation_tokens.observe(finished.num_generation_tokens)
        # This server sends every choice to vLLM as a separate request.
        stats.request_choices.observe(1)
        if finished.max_tokens_param:
            stats.request_max_tokens.observe(finished.max_tokens_param)
