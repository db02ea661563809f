"""Conversations in which a response is being made: one at a time, since the next one goes on from what it says."""

from __future__ import annotations

from weakref import WeakValueDictionary

from ...core.errors import RequestError
from ...dialects.body import echo


class Occupation:
    """Holds a conversation until it is left, or forgotten."""

    def __init__(self, occupied: Occupied, owner: str, id: str) -> None:
        self._occupied, self._key = occupied, (owner, id)

    def leave(self) -> None:
        self._occupied.left(self._key)


class Occupied:
    """Those of this process. A turn that is dropped unheard leaves its conversation too."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[tuple[str, str], Occupation] = WeakValueDictionary()

    def enter(self, owner: str, id: str | None) -> Occupation | None:
        """None where there is no conversation. Raises RequestError while another response is made in it."""
        if id is None:
            return None
        if (owner, id) in self._by_key:
            raise RequestError(
                f"Another response is being generated in conversation {echo(id)}. Please retry in a few seconds.",
                param="conversation",
                code="conversation_locked",
            )
        occupation = self._by_key[owner, id] = Occupation(self, owner, id)
        return occupation

    def left(self, key: tuple[str, str]) -> None:
        self._by_key.pop(key, None)
