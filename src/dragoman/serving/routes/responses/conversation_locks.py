"""Conversation locks: one response at a time per conversation, since the next one continues from its output."""

from __future__ import annotations

from weakref import WeakValueDictionary

from ....core.errors import RequestError
from ....dialects.body import abbreviate


class ConversationLock:
    """Locks a conversation until it is released or garbage-collected."""

    def __init__(self, locks: ConversationLocks, owner: str, id: str) -> None:
        self._locks, self._key = locks, (owner, id)

    def release(self) -> None:
        self._locks.discard(self._key)


class ConversationLocks:
    """The conversation locks of this process. A weak reference releases the lock of a turn that never ran."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[tuple[str, str], ConversationLock] = WeakValueDictionary()

    def acquire(self, owner: str, id: str | None) -> ConversationLock | None:
        """Lock a conversation; None if there is none.

        Raises:
            RequestError: another response is being generated in it.
        """
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
