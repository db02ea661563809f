"""Whose records are evicted from a full store."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heapreplace

from msgspec import Struct


class OwnerUse(Struct, frozen=True):
    """The records of an owner that may be evicted, and their bytes."""

    owner: str
    records: int
    nbytes: int


class Evictions:
    """Chooses the owner with the most records, or bytes, one eviction after the other.

    An owner that floods the store so evicts its own records only: those of the others
    are touched when each of them holds as much as the flood has left.

    surplus_records, surplus_bytes: by how much the bounds are exceeded.
    """

    def __init__(self, uses: Iterable[OwnerUse], surplus_records: int, surplus_bytes: int) -> None:
        self._uses = {use.owner: use for use in uses if use.records}
        self._surplus_records = surplus_records
        self._surplus_bytes = surplus_bytes
        # A heap, because there can be thousands of owners; it is ordered by what is
        # exceeded, and only the use of its first owner changes.
        self._is_by_records = surplus_records > 0
        self._heap: list[tuple[int, str]] = []
        self._order()

    def choose_owner(self) -> str | None:
        """Return the owner whose least recently used record goes next; None if nothing
        has to go, or nothing can.
        """
        if self._is_by_records and self._surplus_records <= 0:
            self._is_by_records = False
            self._order()
        if not self._is_by_records and self._surplus_bytes <= 0:
            return None
        if not self._heap or not self._uses[self._heap[0][1]].records:
            return None
        return self._heap[0][1]

    def count(self, nbytes: int) -> None:
        """Count a record of the chosen owner, of this size, as evicted."""
        owner = self._heap[0][1]
        use = self._uses[owner]
        self._uses[owner] = use = OwnerUse(owner, use.records - 1, use.nbytes - nbytes)
        self._surplus_records -= 1
        self._surplus_bytes -= nbytes
        heapreplace(self._heap, (self._rank(use), owner))

    def _order(self) -> None:
        self._heap = [(self._rank(use), use.owner) for use in self._uses.values()]
        heapify(self._heap)

    def _rank(self, use: OwnerUse) -> int:
        """Return the place of an owner: the least goes first, an owner without records
        last.
        """
        if not use.records:
            return 1
        return -use.records if self._is_by_records else -use.nbytes
