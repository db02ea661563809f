"""The scheduler's state of one request: token counts, blocks."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from enum import Enum

from .block_hashes import BlockContents


class SequenceStatus(Enum):
    """The state of a sequence in the scheduler.

    LOADING: its blocks are being loaded from host memory, or are loaded and wait for a
        step with room.
    FETCHING: its blocks are being fetched from another instance.
    FETCHED: its blocks are fetched; it is resumed before all other waiting sequences.
    PREEMPTED: it lost its blocks and waits again.
    """

    WAITING = "waiting"
    LOADING = "loading"
    FETCHING = "fetching"
    FETCHED = "fetched"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class BlockTable:
    """The blocks of a sequence for the layers of one kind.

    blocks: in sequence order; NULL_BLOCK stands for one that was freed or never needed.
    num_cached: number of blocks that were considered for the prefix cache.
    last_state: index of the block with the state before the last one; with states only.
    num_retired: number of its first blocks that are freed for good; with states only.
    """

    __slots__ = ("blocks", "last_state", "num_cached", "num_retired")

    def __init__(self, blocks: list[int], num_cached: int) -> None:
        self.blocks = blocks
        self.num_cached = num_cached
        self.last_state: int | None = None
        self.num_retired = 0


class SimulatedSequence:
    """One request in the scheduler. Only the scheduler changes its state.

    arrival: time of arrival in seconds, on the driver's clock.
    num_tokens: tokens of prompt and output, including output that running steps will
        sample.
    num_tokens_at_end: num_tokens if the output reaches max_tokens.
    num_computed_tokens: tokens whose keys and values are in the cache, or will be when
        running steps end.
    num_cached_tokens: prompt tokens found in the prefix cache at the first admission,
        fetched or loaded; None before it.
    num_fetched_tokens: part of num_cached_tokens that another instance computed.
    num_loaded_tokens: part of num_cached_tokens that was loaded from host memory.
    is_loaded: whether it was loaded from host memory and waits for a step with room.
    last_step: number of its latest step; with KV offloading only.
    num_remote_tokens: prompt tokens whose keys and values another instance has; 0 once
        fetched.
    lora: name of its adapter; empty for the base model.
    num_drafts: speculative tokens that its next step verifies.
    num_sampled: tokens that it got in its latest step.
    num_in_flight: tokens that running steps compute; with speculative decoding or
        several KV cache groups only.
    tables, junction: its block tables, and where a prefix ends that only some of them
        have cached; with several KV cache groups only, whose sequences have no
        `blocks`.
    num_hashed_blocks: number of its blocks that are registered in the prefix cache.
    is_prefill_chunk: whether its latest step did not reach the end of its prompt; with
        speculative decoding only.
    keeps_blocks: whether its blocks stay held after the last token, for another
        instance to fetch.
    cache_hit_threshold: least share of its prompt that must be cached at its first
        admission; with less it ends there.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "cache_hit_threshold",
        "contents",
        "id",
        "is_loaded",
        "is_prefill_chunk",
        "junction",
        "keeps_blocks",
        "last_step",
        "lora",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_drafts",
        "num_fetched_tokens",
        "num_hashed_blocks",
        "num_in_flight",
        "num_loaded_tokens",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_remote_tokens",
        "num_sampled",
        "num_tokens",
        "num_tokens_at_end",
        "priority",
        "status",
        "tables",
    )

    def __init__(
        self,
        id: str,
        *,
        num_prompt_tokens: int,
        max_tokens: int,
        contents: BlockContents,
        arrival: float = 0.0,
        priority: int = 0,
        lora: str = "",
        num_remote_tokens: int = 0,
        keeps_blocks: bool = False,
        cache_hit_threshold: float = 0.0,
    ) -> None:
        self.id = id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.contents = contents
        self.arrival = arrival
        self.priority = priority
        self.lora = lora
        self.num_remote_tokens = num_remote_tokens
        self.keeps_blocks = keeps_blocks
        self.cache_hit_threshold = cache_hit_threshold
        self.status = SequenceStatus.WAITING
        self.blocks: list[int] = []
        self.tables: list[BlockTable] = []
        self.junction = 0
        self.num_tokens = num_prompt_tokens
        self.num_tokens_at_end = num_prompt_tokens + max_tokens
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.num_hashed_blocks = 0
        self.num_cached_tokens: int | None = None
        self.num_fetched_tokens = self.num_loaded_tokens = 0
        self.last_step = 0
        self.is_loaded = False
        self.num_preemptions = 0
        self.num_drafts = self.num_in_flight = 0
        self.num_sampled = 1
        self.is_prefill_chunk = False

    @property
    def rank(self) -> tuple[int, float]:
        """Order of preemption under the priority policy: the running sequence with the
        highest rank is first.
        """
        return (self.priority, self.arrival)

    @property
    def queue_rank(self) -> tuple[int, float, str]:
        """Order of admission under the priority policy: the lowest is first. As in
        vLLM, the id breaks ties.
        """
        return (self.priority, self.arrival, self.id)


class WaitingQueue(deque[SimulatedSequence]):
    """The waiting sequences in the order of their admission: first come, first served."""

    add = deque[SimulatedSequence].append
    """Adds a sequence."""

    def prepend(self, sequence: SimulatedSequence) -> None:
        """Add a sequence at the front; under the priority policy, at the place of its
        rank.
        """
        self.appendleft(sequence)

    def restore(self, sequences: Sequence[SimulatedSequence]) -> None:
        """Put back sequences that were popped from the front, given in the order in
        which they were popped.
        """
        for sequence in reversed(sequences):
            self.prepend(sequence)


class PriorityQueue(WaitingQueue):
    """The waiting sequences under the priority policy."""

    def add(self, sequence: SimulatedSequence) -> None:
        insort(self, sequence, key=lambda waiting: waiting.queue_rank)

    def prepend(self, sequence: SimulatedSequence) -> None:
        self.add(sequence)
