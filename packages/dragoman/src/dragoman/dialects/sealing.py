"""Seals data that a client sends back, so that only this server can read or verify it."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from ..core.message import Reasoning


class VerificationMode(StrEnum):
    """The handling of reasoning that a client sends back and that fails verification.

    STRICT: the request is rejected.
    LENIENT: the reasoning is omitted, or replaced by its summary, with a warning;
        unsigned reasoning is accepted.
    OFF: signatures are not verified.
    """

    STRICT = "strict"
    LENIENT = "lenient"
    OFF = "off"


class Purpose(StrEnum):
    """The purpose that a sealed text is bound to: it cannot be unsealed for another
    one.
    """

    REASONING = "reasoning"
    COMPACTION = "compaction"
    SEARCH = "search"


class SealingKey(Protocol):
    """The server's key, bound to one caller: data of other callers is rejected, as that
    of other servers is.
    """

    @property
    def check(self) -> VerificationMode: ...

    def seal(self, purpose: Purpose, text: str) -> str:
        """Encrypt and authenticate a text. The result is ASCII and differs each time."""
        ...

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        """Decrypt a text; None if it is damaged, or was sealed by another server or for
        another caller or purpose.
        """
        ...

    def sign(self, thought: str) -> str: ...

    def verify_signature(self, thought: str, signature: str) -> bool: ...


def pack_reasoning(text: str, seal: str) -> str:
    """Pack reasoning and its seal into one text to be sealed. Without a seal, it is the
    text itself.
    """
    if not seal and not text.startswith("\0"):
        return text
    return "\0" + msgspec.json.encode((text, seal)).decode()


def unpack_reasoning(packed: str) -> Reasoning:
    """Unpack the text of `pack_reasoning`."""
    if not packed.startswith("\0"):
        return Reasoning(packed)
    text, seal = msgspec.json.decode(packed[1:], type=tuple[str, str])
    return Reasoning(text, seal=seal)
