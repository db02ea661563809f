"""Thinking that a client sends back: visible with a signature, or omitted and sealed in the signature."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.errors import RequestError
from ...core.message import Reasoning, SealKind
from ..sealing import Purpose, SealingKey, VerificationMode, unpack_reasoning
from .wire import WireContentBlock


class ThinkingBlockReader:
    """Reads the thinking blocks of one request. Appends to `warnings` for those that are left out.

    passes_seals: as in ReaderOptions.
    """

    def __init__(self, sealing_key: SealingKey | None, warnings: list[str], *, passes_seals: bool = False) -> None:
        self._sealing_key, self._warnings, self._passes_seals = sealing_key, warnings, passes_seals

    def read(self, block: WireContentBlock, path: str) -> Iterator[Reasoning]:
        """Read a `thinking` or `redacted_thinking` block. Raises RequestError in strict mode if verification fails."""
        field, sealed = ("data", block.data) if block.type == "redacted_thinking" else ("signature", block.signature)
        unsealed = None
        if not block.thinking or self._passes_seals:
            # An empty `thinking` with a signature is how omitted thinking comes back: the text is sealed in the
            # signature, and so is a vendor's seal where signatures must be this server's own.
            unsealed = self._unseal(sealed)
        # What was unsealed needs no signature: nobody else has the key, so it is this server's own text.
        if unsealed and (not block.thinking or unpack_reasoning(unsealed).text == block.thinking):
            yield unpack_reasoning(unsealed)
        elif not block.thinking and unsealed == "":
            return
        elif self._passes_seals and sealed and self._is_foreign(block.thinking or "", sealed):
            yield Reasoning(block.thinking or "", seal=_name_seal(sealed, is_redacted=field == "data"))
        elif block.thinking and self._is_trusted(block.thinking, sealed or ""):
            yield Reasoning(block.thinking)
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

    def _is_foreign(self, thinking: str, seal: str) -> bool:
        """Whether an engine has to verify this seal. In strict mode only this server's own are accepted."""
        if self._verification is VerificationMode.STRICT:
            return False
        return self._sealing_key is None or not self._sealing_key.verify_signature(thinking, seal)

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


def _name_seal(sealed: str, *, is_redacted: bool) -> str:
    """The seal with its kind. A signature has one already if it comes from another vendor than Anthropic."""
    if SealKind.OPENAI.read(sealed) is not None:
        return sealed
    return (SealKind.ANTHROPIC_REDACTED if is_redacted else SealKind.ANTHROPIC) + sealed
