"""Conversations in which a response is being made: one at a time, since the next one goes on from what it says."""

from __future__ import annotations

from weakref import WeakValueDictionary

from ...core.errors import RequestError
from ...dialects.body import abbreviate


class ConversationLock:
    """Holds a conversation until it is left, or forgotten."""

    def __init__(self, locks: ConversationLocks, owner: str, id: str) -> None:
        self._locks, self._key = locks, (owner, id)

    def release(self) -> None:
        self._locks.discard(self._key)


class ConversationLocks:
    """Those of this process. A turn that is dropped unheard leaves its conversation too."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[tuple[str, str], ConversationLock] = WeakValueDictionary()

    def acquire(self, owner: str, id: str | None) -> ConversationLock | None:
        """None where there is no conversation. Raises RequestError while another response is made in it."""
        if id is None:
            return None
        if (owner, id) in self._by_key:
            raise RequestError(
                f"Another response is being generated in conversation {abbreviate(id)}. Please retry in a few seconds.",
                param="conversation",
                code="conversation_locked",
            )
        lock = self._by_key[owner, id] = ConversationLock(self, owner, id)
        return lock

    def discard(self, key: tuple[str, str]) -> None:
        self._by_key.pop(key, None)
