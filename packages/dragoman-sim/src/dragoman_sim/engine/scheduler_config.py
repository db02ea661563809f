"""Settings of a simulated vLLM's scheduler, named as in vLLM. Independent of hardware
and time.
"""

from __future__ import annotations

from math import lcm
from typing import Literal

from msgspec import Struct

VLLM_VERSION = "0.33.0"
"""The vLLM whose scheduler, metrics and events are simulated."""
SchedulingPolicy = Literal["fcfs", "priority"]


KvCacheKind = Literal["full_attention", "sliding_window", "chunked_local", "state"]


class KvCacheGroup(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Layers of one kind, which share block tables.

    kind: what a token attends to: the whole context, a sliding window, its chunk; or a
        state of fixed size (linear attention, Mamba).
    window: tokens of the sliding window or of a chunk.
    tables: number of block tables; each is that of as many layers.
    block_size: tokens of a block; None is the configuration's.
    """

    kind: KvCacheKind = "full_attention"
    window: int = 0
    tables: int = 1
    block_size: int | None = None

    def __post_init__(self) -> None:
        has_window = self.kind in ("sliding_window", "chunked_local")
        if has_window and self.window < 2:
            raise ValueError(f"a group of kind {self.kind} needs a window of at least 2 tokens")
        if not has_window and self.window:
            raise ValueError(f"a group of kind {self.kind} has no window")
        if self.tables < 1 or (self.block_size or 1) < 1:
            raise ValueError("tables and block_size of a group must be at least 1")

    def count_held_blocks(self, config: SimulatedSchedulerConfig) -> int | None:
        """Count the blocks that a sequence holds at most in one table; None if that
        grows with its length.

        As `max_admission_blocks_per_request` in vLLM's kv_cache_interface.py.
        """
        block_size = self.block_size or config.block_size
        if self.kind == "full_attention":
            return None
        if self.kind == "state":
            return 2 if config.enable_prefix_caching else 1
        # Blocks are freed at the end of the step that no longer needs them, and
        # asynchronous scheduling has two steps in flight.
        in_flight = (1 + config.async_scheduling) * config.max_num_batched_tokens
        retained = self.window - (self.kind == "sliding_window")
        num_tokens = retained + in_flight
        if config.max_model_len is not None:
            num_tokens = min(num_tokens, config.max_model_len)
        # A window may begin in the middle of a block, a chunk does not.
        return -(-num_tokens // block_size) + (self.kind == "sliding_window")


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
    kv_cache_groups: the layers by kind; empty if all attend to the whole context.
    prefix_cache_retention_interval: tokens between the prefixes that sliding windows
        and states keep cached, beside the end of each prompt; 0 keeps no others, None
        keeps all.
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
    kv_cache_groups: tuple[KvCacheGroup, ...] = ()
    prefix_cache_retention_interval: int | None = 0

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

        self._check_groups()

    def _check_groups(self) -> None:
        groups = self.kv_cache_groups
        interval = self.prefix_cache_retention_interval
        sizes = [group.block_size or self.block_size for group in groups]
        alignment = lcm(*sizes)
        if interval is not None and interval < 0:
            raise ValueError("prefix_cache_retention_interval must not be negative")
        if interval and (interval % alignment or not groups):
            raise ValueError(
                "prefix_cache_retention_interval needs groups with a sliding window or a state, "
                f"and must be a multiple of their blocks' {alignment} tokens"
            )
        if not groups:
            return
        kinds = {group.kind for group in groups}
        self._check_block_sizes(sizes, alignment)
        if "full_attention" not in kinds and len(groups) > 1:
            raise ValueError("several kv_cache_groups need one of kind full_attention")
        if len({(group.kind, group.window, group.block_size) for group in groups}) < len(groups):
            raise ValueError("equal kv_cache_groups must be one group with more tables")
        if sum(group.tables for group in groups) > 255:
            raise ValueError("kv_cache_groups must not have more than 255 tables")
        if "state" in kinds and self.num_speculative_tokens:
            raise ValueError("speculative decoding with groups of kind state is not simulated")
        if "state" in kinds and self.enable_prefix_caching and not self.enable_chunked_prefill:
            raise ValueError("prefix caching of states needs chunked prefill")
        if self.num_gpu_blocks - 1 < self._count_held(1):
            raise ValueError("num_gpu_blocks must be enough for a token in every table")

    def _check_block_sizes(self, sizes: list[int], alignment: int) -> None:
        for group, size in zip(self.kv_cache_groups, sizes, strict=True):
            if size % self.block_size:
                raise ValueError("block_size of a group must be a multiple of block_size")
            if size != self.block_size and group.kind != "sliding_window":
                raise ValueError(
                    f"a group of kind {group.kind} with a block_size of its own is not simulated"
                )
            if alignment != self.block_size and group.kind == "chunked_local":
                raise ValueError("groups of different block sizes do not work with chunked_local")

    @property
    def kv_tokens(self) -> int:
        """Tokens of the longest sequence that the whole cache holds."""
        available = self.num_gpu_blocks - 1
        if not self.kv_cache_groups:
            return available * self.block_size
        low = 1
        high = available * max(group.block_size or self.block_size for group in self._groups) + 1
        if self._count_held(high) <= available:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._count_held(middle) <= available else (low, middle)
        return low

    @property
    def _groups(self) -> tuple[KvCacheGroup, ...]:
        return self.kv_cache_groups or (KvCacheGroup(),)

    def _count_held(self, num_tokens: int) -> int:
        """Count the blocks that a sequence of this length holds at most at a time."""
        held = 0
        for group in self._groups:
            blocks = -(-num_tokens // (group.block_size or self.block_size))
            most = group.count_held_blocks(self)
            held += group.tables * (blocks if most is None else min(blocks, most))
        return held

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
