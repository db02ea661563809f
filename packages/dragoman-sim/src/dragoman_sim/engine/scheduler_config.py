"""Settings of a simulated vLLM's scheduler, named as in vLLM. Independent of hardware
and time.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

VLLM_VERSION = "0.33.0"
"""The vLLM whose scheduler, metrics and events are simulated."""
SchedulingPolicy = Literal["fcfs", "priority"]


class SimulatedSchedulerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and policies of the scheduler. Defaults are those of vLLM's API server.

    num_gpu_blocks: blocks of the key-value cache; block 0 is vLLM's null block and
        never used.
    max_model_len: most tokens of a prompt and its output; None is the capacity of the
        cache.
    max_num_active_seqs: most sequences that run at once; None is max_num_seqs.
    max_loras: most adapters that run at once; requests for further ones wait, and later
        requests may overtake them.
    long_prefill_token_threshold: most prompt tokens of one request in a step, unless it
        is the only one; 0 is no limit.
    long_prefill_token_threshold_adaptive: the threshold is at least
        max_num_batched_tokens / number of requests.
    async_scheduling: a step is scheduled while the previous one runs, so an arrival or
        an end takes effect one step later.
    scheduler_reserve_full_isl: admit a request only if its whole prompt fits, not just
        its first chunk.
    watermark: share of the cache that must stay free when a request is admitted.
    num_speculative_tokens: draft tokens that a decoding request verifies in each step;
        0 is no speculative decoding.
    num_lookahead_tokens: further slots reserved for a drafter with a KV cache of its
        own (EAGLE, MTP, a draft model), as many as num_speculative_tokens; 0 for
        n-grams.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_gpu_blocks: int = 16384
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_num_active_seqs: int | None = None
    max_loras: int = 1
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduling_policy: SchedulingPolicy = "fcfs"
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "max_loras",
            "max_num_active_seqs",
        ):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.num_gpu_blocks < 2:
            raise ValueError("num_gpu_blocks must be at least 2: one of them is the null block")
        if (self.max_num_active_seqs or 0) > self.max_num_seqs:
            raise ValueError("max_num_active_seqs must not be more than max_num_seqs")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ValueError("max_model_len must be at least 1")
        if self.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must not be negative")
        if self.num_speculative_tokens < 0 or self.num_lookahead_tokens < 0:
            raise ValueError("num_speculative_tokens and num_lookahead_tokens must not be negative")
        if self.num_speculative_tokens >= self.max_num_batched_tokens:
            raise ValueError("num_speculative_tokens must be less than max_num_batched_tokens")
        if not 0 <= self.watermark < 1:
            raise ValueError("watermark must be at least 0 and less than 1")
        # Without chunked prefill each prompt must fit into one step; vLLM refuses to
        # start for the same reason.
        if (
            not self.enable_chunked_prefill
            and (self.max_model_len or 0) > self.max_num_batched_tokens
        ):
            raise ValueError(
                "without chunked prefill max_num_batched_tokens must be at least max_model_len"
            )

    @property
    def kv_tokens(self) -> int:
        """Capacity of the whole cache in tokens."""
        return (self.num_gpu_blocks - 1) * self.block_size

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt and its output that can ever run, even if recomputed
        after a preemption.
        """
        limits = [self.kv_tokens]
        if self.max_model_len is not None:
            limits.append(self.max_model_len)
        if not self.enable_chunked_prefill:
            limits.append(self.max_num_batched_tokens)
        return min(limits)
