"""How much may wait for an engine, in tokens: a queue that is bounded by requests alone can hold any amount of memory
and hours of work. Knows no engine; each has its own bound of requests.
"""

from __future__ import annotations

from ..core.errors import Overloaded, QueueFull

MOST = 32 * 1024 * 1024
UNASKED = 50
"""Refusals after which the engine is asked again."""


class WaitingRoom:
    """Of one model. most: tokens of the prompts that wait together; one alone may always wait.

    While an engine has said that its queue is full, few need to be rendered and tokenised to hear it again.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.tokens = 0
        """Of all prompts that wait now."""
        self._unasked = 0

    def check(self) -> None:
        """Raises Overloaded where a prompt of any length would be refused."""
        if self._unasked:
            self._unasked -= 1
            raise QueueFull("The request queue is full; retry later.")
        if self.tokens >= self._most:
            raise self._overloaded()

    def enter(self, tokens: int) -> None:
        """Raises Overloaded."""
        if self.tokens and self.tokens + tokens > self._most:
            raise self._overloaded()
        self.tokens += tokens

    def leave(self, tokens: int) -> None:
        """It runs now, or is given up."""
        self.tokens -= tokens
        self._unasked = 0

    def fill(self) -> None:
        """The engine's queue is full: the next are refused unasked, until somebody leaves it, or the engine."""
        self._unasked = UNASKED

    def drain(self) -> None:
        """Somebody has left the engine."""
        self._unasked = 0

    def _overloaded(self) -> Overloaded:
        return Overloaded(f"{self.tokens} tokens of prompts are already queued; retry later.")
