"""How much may wait for an engine, in tokens: a queue that is bounded by requests alone can hold any amount of memory
and hours of work. Knows no engine; each has its own bound of requests.
"""

from __future__ import annotations

from ..core.errors import Overloaded, QueueFull

DEFAULT_MAX_TOKENS = 32 * 1024 * 1024
FAST_REJECTIONS = 50
"""Refusals after which the engine is asked again."""


class TokenBudget:
    """Of one model. most: tokens of the prompts that wait together; one alone may always wait.

    While an engine has said that its queue is full, few need to be rendered and tokenised to hear it again.
    """

    def __init__(self, max_tokens: int = DEFAULT_MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self.waiting_tokens = 0
        """Of all prompts that wait now."""
        self._fast_rejections = 0

    def check_capacity(self) -> None:
        """Raises Overloaded where a prompt of any length would be refused."""
        if self._fast_rejections:
            self._fast_rejections -= 1
            raise QueueFull("The request queue is full; retry later.")
        if self.waiting_tokens >= self._max_tokens:
            raise self._build_overloaded()

    def acquire(self, tokens: int) -> None:
        """Raises Overloaded."""
        if self.waiting_tokens and self.waiting_tokens + tokens > self._max_tokens:
            raise self._build_overloaded()
        self.waiting_tokens += tokens

    def release(self, tokens: int) -> None:
        """It runs now, or is given up."""
        self.waiting_tokens -= tokens
        self._fast_rejections = 0

    def mark_full(self) -> None:
        """The engine's queue is full: the next are refused unasked, until somebody leaves it, or the engine."""
        self._fast_rejections = FAST_REJECTIONS

    def mark_free(self) -> None:
        """Somebody has left the engine."""
        self._fast_rejections = 0

    def _build_overloaded(self) -> Overloaded:
        return Overloaded(f"{self.waiting_tokens} tokens of prompts are already queued; retry later.")
