"""The memory budget that all request bodies in flight share."""

from __future__ import annotations

from ..core.errors import Overloaded


class BodyMemoryBudget:
    """The memory budget for all request bodies in flight, in bytes. A body that is
    alone may exceed `limit`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class BodyMemoryShare:
    """The part of the budget that one request uses, from the first byte of its body
    until it is parsed.
    """

    __slots__ = ("_budget", "_reserved")

    def __init__(self, budget: BodyMemoryBudget) -> None:
        self._budget = budget
        self._reserved = 0

    def reserve(self, size: int) -> None:
        """Set the share to `size` bytes; shrinking always succeeds.

        Raises:
            Overloaded: the budget is exhausted.
        """
        # Without other bodies in flight the budget does not apply: only the limit of a
        # single body does.
        budget = self._budget
        used_by_others = self._budget.used - self._reserved
        if size > self._reserved and used_by_others and used_by_others + size > budget.limit:
            raise Overloaded("The memory for request bodies is exhausted; retry later.")
        budget.used = used_by_others + size
        self._reserved = size

    def release(self) -> None:
        self.reserve(0)
