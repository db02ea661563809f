"""The interface of an engine whose replies are set from outside."""

from __future__ import annotations

from typing import Protocol


class Scriptable(Protocol):
    """An engine whose replies and faults are set from outside. No method blocks."""

    def enqueue_reply(self, reply: object) -> None:
        """Queue the reply to the next request: one scripted reply, or a list for as
        many requests.

        Raises:
            RequestError: the reply is invalid; nothing has been queued.
        """
        ...

    def set_faults(self, faults: object) -> None:
        """Replace the faults for all requests from now on: one fault or a list; an
        empty list clears them.

        Raises:
            RequestError: a fault is invalid.
        """
        ...

    def get_faults(self) -> str:
        """Return the active faults as JSON text."""
        ...
