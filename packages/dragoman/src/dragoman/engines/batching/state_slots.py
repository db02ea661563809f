"""Slots for the state of recurrent and convolutional layers, one per running sequence."""

from __future__ import annotations

from heapq import heappop, heappush


class StateSlots:
    """Slots for the state that a running sequence has besides keys and values
    (recurrent and convolutional layers).

    The lowest free slot is allocated first, so running sequences mostly have
    consecutive slots.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """Allocate a slot. At least one must be free. Its contents are those of its
        last owner.
        """
        return heappop(self._free)

    def release(self, slot: int) -> None:
        heappush(self._free, slot)

    def reset(self) -> None:
        """Free all slots."""
        self._free = list(range(self.size))
