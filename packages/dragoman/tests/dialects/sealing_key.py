"""A sealing key with readable output, so that tests can assert what is encrypted and
signed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.dialects.sealing import Purpose, VerificationMode


@dataclass(frozen=True)
class ReadableSealingKey:
    check: VerificationMode = VerificationMode.LENIENT

    def seal(self, purpose: Purpose, text: str) -> str:
        return f"{purpose}:{text}"

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        mine = f"{purpose}:"
        return sealed.removeprefix(mine) if sealed.startswith(mine) else None

    def sign(self, thought: str) -> str:
        return thought.upper()

    def verify_signature(self, thought: str, signature: str) -> bool:
        return signature == self.sign(thought)
