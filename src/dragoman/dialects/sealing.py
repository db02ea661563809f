"""The interface for data that only this server can decrypt or sign. Knows no key and no cipher."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from ..core.message import Reasoning


class VerificationMode(StrEnum):
    """How to handle reasoning from a client that fails verification.

    STRICT: the request is rejected.
    LENIENT: the reasoning is left out, or replaced by its summary, with a warning; unsigned reasoning is accepted.
    OFF: signatures are not verified.
    """

    STRICT = "strict"
    LENIENT = "lenient"
    OFF = "off"


class Purpose(StrEnum):
    """The purpose that a sealed text is bound to: it cannot be opened for another."""

    REASONING = "reasoning"
    COMPACTION = "compaction"


class SealingKey(Protocol):
    """The server's key bound to one caller: another caller's data is rejected like another server's."""

    @property
    def check(self) -> VerificationMode: ...

    def seal(self, purpose: Purpose, text: str) -> str:
        """Encrypt and authenticate a text, as ASCII. The result differs each time."""
        ...

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        """Decrypt; None if damaged, or sealed by another server or for another caller or purpose."""
        ...

    def sign(self, thought: str) -> str: ...

    def verify_signature(self, thought: str, signature: str) -> bool: ...


def pack_reasoning(text: str, seal: str) -> str:
    """Pack reasoning and its seal into one text to be sealed; without a seal that is the text itself."""
    if not seal and not text.startswith("\0"):
        return text
    return "\0" + msgspec.json.encode((text, seal)).decode()


def unpack_reasoning(packed: str) -> Reasoning:
    """Unpack the text of `pack_reasoning`."""
    if not packed.startswith("\0"):
        return Reasoning(packed)
    try:
        text, seal = msgspec.json.decode(packed[1:], type=tuple[str, str])
    except msgspec.MsgspecError:
        # A text that was sealed before there were packed ones.
        return Reasoning(packed)
    return Reasoning(text, seal=seal)
