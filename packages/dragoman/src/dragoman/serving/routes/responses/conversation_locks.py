"""Locks of conversations, each of which generates one response at a time."""

from __future__ import annotations

from weakref import WeakValueDictionary

from ....core.errors import RequestError
from ....dialects.field_errors import abbreviate


class ConversationLock:
    """The lock of a conversation, held until it is released or garbage-collected."""

    def __init__(self, locks: ConversationLocks, owner: str, id: str) -> None:
        self._locks = locks
        self._key = (owner, id)
        self._is_held = True

    def release(self) -> None:
        """Release the conversation. Later calls have no effect."""
        if self._is_held:
            self._is_held = False
            self._locks.discard(self._key)


class ConversationLocks:
    """The conversation locks of this process.

    A conversation generates one response at a time, because the next response continues
    its output. References are weak, so the lock of a turn that never ran is released
    when the turn is garbage-collected.
    """

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[tuple[str, str], ConversationLock] = WeakValueDictionary()

    def acquire(self, owner: str, id: str | None) -> ConversationLock | None:
        """Lock a conversation; return None if `id` is None.

        Raises:
            RequestError: another response is being generated in it.
        """
        if id is None:
            return None
        if (owner, id) in self._by_key:
            raise RequestError(
                f"Another response is being generated in conversation {abbreviate(id)}. Please "
                f"retry in a few seconds.",
                param="conversation",
                code="conversation_locked",
            )
        lock = self._by_key[owner, id] = ConversationLock(self, owner, id)
        return lock

    def discard(self, key: tuple[str, str]) -> None:
        self._by_key.pop(key, None)
