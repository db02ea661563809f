"""A key that a test can read: what it seals and signs says so."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.dialects.sealing import Check, Purpose


@dataclass(frozen=True)
class Wax:
    check: Check = Check.LENIENT

    def seal(self, purpose: Purpose, text: str) -> str:
        return f"{purpose}:{text}"

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        mine = f"{purpose}:"
        return sealed.removeprefix(mine) if sealed.startswith(mine) else None

    def sign(self, thought: str) -> str:
        return thought.upper()

    def has_signed(self, thought: str, signature: str) -> bool:
        return signature == self.sign(thought)
