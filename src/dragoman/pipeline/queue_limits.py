"""Bounds the prompt tokens that wait for an engine: a queue bounded by requests alone can hold any amount of memory
and
hours of work. Knows no engine; each engine bounds the number of its requests itself.
"""

from __future__ import annotations

from ..core.errors import Overloaded, QueueFull

DEFAULT_MAX_TOKENS = 32 * 1024 * 1024
FAST_REJECTIONS = 50
"""Rejections after which one request is passed to the engine again."""


class TokenBudget:
    """The token budget of one model's queue.

    max_tokens: prompt tokens that may wait together; a single prompt of any length may always wait.

    While the engine reports a full queue, requests are rejected before they are rendered and tokenised.
    """

    def __init__(self, max_tokens: int = DEFAULT_MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self.waiting_tokens = 0
        """Prompt tokens that wait now."""
        self._fast_rejections = 0

    def check_capacity(self) -> None:
        """Raise Overloaded where a prompt of any length would be rejected."""
        if self._fast_rejections:
            self._fast_rejections -= 1
            raise QueueFull("The request queue is full; retry later.")
        if self.waiting_tokens >= self._max_tokens:
            raise self._build_overloaded()

    def acquire(self, tokens: int) -> None:
        """Reserve tokens for a prompt that waits. Raises Overloaded."""
        if self.waiting_tokens and self.waiting_tokens + tokens > self._max_tokens:
            raise self._build_overloaded()
        self.waiting_tokens += tokens

    def release(self, tokens: int) -> None:
        """Return the tokens: the prompt runs now, or was cancelled."""
        self.waiting_tokens -= tokens
        self._fast_rejections = 0

    def mark_full(self) -> None:
        """The engine's queue is full: reject the next requests at once, until a request ends or the engine was
        tried again.
        """
        self._fast_rejections = FAST_REJECTIONS

    def mark_free(self) -> None:
        """A request has left the engine."""
        self._fast_rejections = 0

    def _build_overloaded(self) -> Overloaded:
        return Overloaded(f"{self.waiting_tokens} tokens of prompts are already queued; retry later.")
