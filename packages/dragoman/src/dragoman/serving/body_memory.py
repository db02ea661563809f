"""The memory budget that all request bodies in flight share."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..core.errors import Overloaded
from ..core.fair_shares import compute_allowance


class BodyMemoryBudget:
    """The memory budget for all request bodies in flight, in bytes. A body that is
    alone may exceed `limit`.

    list_owners: lists the API keys that share it.
    used, held: bytes of all bodies, and by owner.
    """

    def __init__(self, limit: int, list_owners: Callable[[], Collection[str]] = tuple) -> None:
        self.limit = limit
        self.used = 0
        self._list_owners = list_owners
        self.held: dict[str, int] = {}

    def can_grow(self, owner: str, size: int) -> bool:
        """Whether the bodies of an owner may take this many bytes more."""
        total = self.used + size
        # Up to here the allowance admits everybody.
        if total <= self.limit // 2:
            return True
        allowance = compute_allowance(self.limit, owner, self._list_owners(), self.held)
        return self.held.get(owner, 0) + size <= allowance


class BodyMemoryShare:
    """The part of the budget that one request uses, from the first byte of its body
    until it is parsed.

    owner: the API key that the request has; set before the body is read.
    """

    __slots__ = ("_budget", "_reserved", "owner")

    def __init__(self, budget: BodyMemoryBudget, owner: str = "") -> None:
        self._budget = budget
        self._reserved = 0
        self.owner = owner

    def reserve(self, size: int) -> None:
        """Set the share to `size` bytes; shrinking always succeeds.

        Raises:
            Overloaded: the budget, or the owner's part of it, is exhausted.
        """
        # Without other bodies in flight the budget does not apply: only the limit of a
        # single body does.
        budget = self._budget
        growth = size - self._reserved
        is_alone = budget.used == self._reserved
        if growth > 0 and not is_alone and not budget.can_grow(self.owner, growth):
            raise Overloaded("The memory for request bodies is exhausted; retry later.")
        budget.used += growth
        held = budget.held.get(self.owner, 0) + growth
        if held:
            budget.held[self.owner] = held
        else:
            budget.held.pop(self.owner, None)
        self._reserved = size

    def release(self) -> None:
        if self._reserved:
            self.reserve(0)
