"""The interface of a matcher, which tells the tokens that a constrained answer allows
next.
"""

from __future__ import annotations

from typing import Protocol


class Matcher(Protocol):
    """The state of one constrained answer: which tokens may come next."""

    def mask(self) -> bytes:
        """Return a bit mask over token ids, little-endian in each byte; 1 is allowed.

        It may be longer than the vocabulary.
        """
        ...

    def allows(self, token: int) -> bool:
        """Whether the token may come next. Has no side effect, and is cheaper than a
        mask.
        """
        ...

    def advance(self, token: int) -> bool:
        """Accept a sampled token; False if the grammar does not allow it."""
        ...

    def replace(self, token: int) -> int:
        """Return the token to append instead of a sampled one: another one if the
        answer must be closed at its limit.

        Only for engines whose capabilities list the parameter `close_at_limit`.
        """
        ...

    @property
    def finished(self) -> bool:
        """Whether only end-of-sequence may follow."""
        ...

    @property
    def was_closed(self) -> bool:
        """Whether `replace` has replaced tokens of the model to end the answer at its
        limit.
        """
        ...
