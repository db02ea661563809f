"""Thinking that a client sends back: visible with a signature, or omitted and sealed in the signature."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.errors import RequestError
from ...core.message import Reasoning
from ..base import Purpose, SealingKey, VerificationMode
from .wire import WireContentBlock


class ThinkingBlockReader:
    """Reads the thinking blocks of one request. Appends to `warnings` for those that are left out."""

    def __init__(self, sealing_key: SealingKey | None, warnings: list[str]) -> None:
        self._sealing_key, self._warnings = sealing_key, warnings

    def read(self, block: WireContentBlock, path: str) -> Iterator[Reasoning]:
        """Read a `thinking` or `redacted_thinking` block. Raises RequestError in strict mode if verification fails."""
        field, sealed = ("data", block.data) if block.type == "redacted_thinking" else ("signature", block.signature)
        # An empty `thinking` with a signature is how omitted thinking comes back: the text is sealed in the signature.
        thinking = block.thinking or self._unseal(sealed)
        # What was unsealed needs no signature: nobody else has the key, so it is this server's own text.
        if thinking is not None and (not block.thinking or self._is_trusted(block.thinking, sealed or "")):
            if thinking:
                yield Reasoning(thinking)
        elif self._verification is VerificationMode.STRICT:
            raise RequestError(f"{path}: Invalid `{field}` in `{block.type}` block", param=f"{path}.{field}")
        else:
            self._warnings.append(
                f"{path}: its {field} was not created by this server for this key; the thinking block is omitted"
            )

    @property
    def _verification(self) -> VerificationMode:
        return VerificationMode.OFF if self._sealing_key is None else self._sealing_key.check

    def _unseal(self, sealed: str | None) -> str | None:
        """Unseal omitted thinking; empty if nothing is sealed, None if it cannot be unsealed."""
        if not sealed:
            return ""
        return None if self._sealing_key is None else self._sealing_key.unseal(Purpose.REASONING, sealed)

    def _is_trusted(self, thinking: str, signature: str) -> bool:
        if (
            self._sealing_key is None
            or self._verification is VerificationMode.OFF
            # Thinking of another server has no signature of ours. Lenient accepts it as plain text, but never a forged
            # one.
            or (self._verification is VerificationMode.LENIENT and not signature)
        ):
            return True
        return self._sealing_key.verify_signature(thinking, signature)
