"""What only this server shall read or vouch for, as readers and writers see it. Knows no key and no cipher."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class VerificationMode(StrEnum):
    """What becomes of a thought that comes back and is not, or no more, what this server gave to this caller.

    STRICT: the request is refused. LENIENT: the thought is left out, or replaced by its summary, and a warning says
    so; one that nobody signed is believed. OFF: signatures are not looked at.
    """

    STRICT = "strict"
    LENIENT = "lenient"
    OFF = "off"


class Purpose(StrEnum):
    """What is sealed for one purpose cannot be opened for another."""

    REASONING = "reasoning"
    COMPACTION = "compaction"


class SealingKey(Protocol):
    """A key in the hands of one caller: what was made for another one is as foreign as another server's."""

    @property
    def check(self) -> VerificationMode: ...

    def seal(self, purpose: Purpose, text: str) -> str:
        """Text that only this server can read, as ASCII. Differs each time."""
        ...

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        """None for what is damaged, foreign, or sealed for another caller or purpose."""
        ...

    def sign(self, thought: str) -> str: ...

    def verify_signature(self, thought: str, signature: str) -> bool: ...
