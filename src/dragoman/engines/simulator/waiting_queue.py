"""The waiting queue: first come first served, or by priority and then arrival; preempted sequences go first."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence

from .config import SchedulingPolicy
from .sequence import SimulatedSequence


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
