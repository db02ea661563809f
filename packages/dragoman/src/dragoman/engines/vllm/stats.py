"""The process that runs vLLM's AsyncLLM (start, health, stop), for generation and
pooling, and its counters.

The counters are collected through vLLM's stat logger interface.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.engine import Health
from ...core.errors import EngineError
from ...core.metrics import CacheConfig, EngineStats, LoraState
from . import backend
from .backend import AdapterTable, AsyncLLM, IterationStats, SchedulerStats, VllmConfig


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


log = logging.getLogger(__name__)


class VllmProcess:
    """An AsyncLLM, which runs in this process and in the processes of its engine cores.

    arguments: arguments of vLLM's AsyncEngineArgs.
    adapters: loaded at each start.

    It can be started again after a stop. Requests and caches are lost; counters and
    adapters are kept.
    """

    def __init__(self, arguments: Mapping[str, Any], adapters: AdapterTable) -> None:
        self._arguments = arguments
        self._adapters = adapters
        self.counters = VllmCounters()
        self._llm: AsyncLLM | None = None
        self._failure: str | None = None

    async def start(self) -> None:
        """Start vLLM and load the weights, which may take minutes. Raises EngineError."""
        try:
            self._failure = None
            self._llm = llm = await asyncio.to_thread(self._launch)
            # The first call starts the output handler on this event loop, which also
            # detects the death of the engine core.
            await llm.get_supported_tasks()
            for name in self._adapters.list_names():
                try:
                    await llm.add_lora(self._adapters.get(name))
                except Exception as error:
                    if llm.errored:
                        raise
                    # The model serves without an adapter that vLLM cannot load.
                    log.error(
                        "The adapter %s is not served, because vLLM cannot load it: %s", name, error
                    )
                    self._adapters.drop(name)
        except Exception as error:
            # Exceptions of vLLM's workers arrive here, often as a bare Exception with
            # text.
            await self.stop()
            raise EngineError(f"vLLM failed to start: {error}") from error

    def _launch(self) -> AsyncLLM:
        arguments = backend.arguments.AsyncEngineArgs(**self._arguments)
        return backend.async_llm.AsyncLLM.from_engine_args(
            arguments, stat_loggers=[self.counters.build_logger_class()]
        )

    async def stop(self) -> None:
        # Cleared first, so that new requests are rejected while vLLM shuts down.
        llm = self._llm
        self._llm = None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def fail(self, reason: str) -> None:
        """Report the engine as failed, so that it is restarted.

        reason: why it cannot continue.
        """
        self._failure = reason

    def get_health(self, *, waiting: int, running: int) -> Health:
        if self._llm is None:
            return Health(ready=False, reason="the engine is not running", waiting=waiting)
        failure = "vLLM's engine core has died" if self._llm.errored else self._failure
        if failure is not None:
            return Health(ready=False, reason=failure, waiting=waiting, failed=True)
        return Health(waiting=waiting, running=running)

    @property
    def is_running(self) -> bool:
        return self._llm is not None and not self._llm.errored and self._failure is None

    def get_engine(self) -> AsyncLLM:
        """Return the running engine. Raises EngineError if none is running."""
        if not self.is_running:
            raise EngineError("The engine is not running.")
        return self._llm
