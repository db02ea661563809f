"""The scheduler's state of one request (token counts and blocks), and the queue of those that wait.

The queue is first come first served, or by priority and then arrival; preempted sequences go first.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum

from .config import SchedulingPolicy
from .hashing import BlockContents


class SequenceStatus(Enum):
    """The state of a sequence in the scheduler. PREEMPTED also waits, in front of those that never ran.

    LOADING has its blocks and waits for the host's memory to fill them, or for a step that has room for it.
    FETCHING has its blocks and waits for another instance to fill them; FETCHED has them filled and is first in line.
    """

    WAITING = "waiting"
    LOADING = "loading"
    FETCHING = "fetching"
    FETCHED = "fetched"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class SimulatedSequence:
    """One request in the scheduler. Only the scheduler changes its state.

    num_tokens: prompt and output, including the output that running steps will sample.
    num_computed_tokens: those whose keys and values are in the cache, or will be when those steps end.
    num_cached_tokens: of the prompt, found in the prefix cache at the first admission (or fetched); None before it.
    num_fetched_tokens: of these, those that another instance computed.
    num_loaded_tokens: of num_cached_tokens, those that were loaded from host memory.
    is_loaded: it was, and waits for a step that has room for it.
    last_step: number of its latest step; with KV offloading only.
    num_remote_tokens: of the prompt, whose keys and values another instance has; 0 once fetched.
    lora: name of its adapter; empty for the model itself.
    num_drafts: speculative tokens that its next step verifies.
    num_sampled: tokens that its latest step gave.
    num_in_flight: tokens that running steps compute, counted with speculative decoding only.
    is_prefill_chunk: its latest step did not reach the end of its prompt; with speculative decoding only.
    keeps_blocks: after the last token its blocks stay held, for another instance to fetch.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "contents",
        "id",
        "is_loaded",
        "is_prefill_chunk",
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
        self.status = SequenceStatus.WAITING
        self.blocks: list[int] = []
        self.num_tokens = num_prompt_tokens
        self.num_tokens_at_end = num_prompt_tokens + max_tokens
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.num_hashed_blocks = 0
        self.num_cached_tokens: int | None = None
        self.num_fetched_tokens = self.num_loaded_tokens = 0
        self.last_step, self.is_loaded = 0, False
        self.num_preemptions = 0
        self.num_drafts = self.num_in_flight = 0
        self.num_sampled = 1
        self.is_prefill_chunk = False

    @property
    def rank(self) -> tuple[int, float]:
        """Under the priority policy the running sequence with the highest rank is preempted first."""
        return (self.priority, self.arrival)

    @property
    def queue_rank(self) -> tuple[int, float, str]:
        """Lower is admitted first under the priority policy; as in vLLM, the id decides among equals."""
        return (self.priority, self.arrival, self.id)


class WaitingQueue:
    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy == "priority"
        self._queue: deque[SimulatedSequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[SimulatedSequence]:
        return iter(self._queue)

    @property
    def head(self) -> SimulatedSequence:
        """The sequence that is admitted next. The queue must not be empty."""
        return self._queue[0]

    def add(self, sequence: SimulatedSequence) -> None:
        if self._by_priority:
            insort(self._queue, sequence, key=lambda waiting: waiting.queue_rank)
        else:
            self._queue.append(sequence)

    def prepend(self, sequence: SimulatedSequence) -> None:
        """A preempted sequence; under the priority policy its rank alone decides."""
        if self._by_priority:
            self.add(sequence)
        else:
            self._queue.appendleft(sequence)

    def restore(self, sequences: Sequence[SimulatedSequence]) -> None:
        """Put the first sequences of the queue, which were popped one after the other, back into their places."""
        for sequence in reversed(sequences):
            self.prepend(sequence)

    def pop(self) -> SimulatedSequence:
        return self._queue.popleft()

    def remove(self, sequence: SimulatedSequence) -> None:
        self._queue.remove(sequence)
