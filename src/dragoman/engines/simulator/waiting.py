"""The waiting queue: first come first served, or by priority and then arrival; the preempted go in front."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator

from .config import SchedulingPolicy
from .sequence import Sequence


class WaitingQueue:
    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy == "priority"
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    @property
    def head(self) -> Sequence:
        """Who is admitted next. The queue must not be empty."""
        return self._queue[0]

    def add(self, sequence: Sequence) -> None:
        if self._by_priority:
            insort(self._queue, sequence, key=lambda waiting: waiting.rank)
        else:
            self._queue.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence; under the priority policy its rank alone decides."""
        if self._by_priority:
            self.add(sequence)
        else:
            self._queue.appendleft(sequence)

    def pop(self) -> Sequence:
        return self._queue.popleft()

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)
