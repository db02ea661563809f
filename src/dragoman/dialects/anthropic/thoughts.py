"""Thoughts that a client sends back: shown ones with a signature, withheld ones that are sealed in it."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.errors import RequestError
from ...core.message import Reasoning
from ..sealing import Check, Purpose, Sealing
from .wire import ContentBlock


class Thoughts:
    """Reads the thoughts of one request. warnings: those of the ones that are left out are added."""

    def __init__(self, sealing: Sealing | None, warnings: list[str]) -> None:
        self._sealing, self._warnings = sealing, warnings

    def read(self, block: ContentBlock, at: str) -> Iterator[Reasoning]:
        """What a `thinking` or `redacted_thinking` block holds. Raises RequestError where doubt is a refusal."""
        field, given = ("data", block.data) if block.type == "redacted_thinking" else ("signature", block.signature)
        thought = block.thinking or self._opened(given)
        if thought is not None and (not block.thinking or self._is_believed(block.thinking, given or "")):
            if thought:
                yield Reasoning(thought)
        elif self._check is Check.STRICT:
            raise RequestError(f"{at}: Invalid `{field}` in `{block.type}` block", param=f"{at}.{field}")
        else:
            self._warnings.append(
                f"{at}: its {field} was not created by this server for this key; the thinking block is omitted"
            )

    @property
    def _check(self) -> Check:
        return Check.OFF if self._sealing is None else self._sealing.check

    def _opened(self, sealed: str | None) -> str | None:
        """A withheld thought; nothing to think where nothing is sealed, None where it cannot be opened."""
        if not sealed:
            return ""
        return None if self._sealing is None else self._sealing.unseal(Purpose.REASONING, sealed)

    def _is_believed(self, thought: str, signature: str) -> bool:
        if self._sealing is None or self._check is Check.OFF or (self._check is Check.LENIENT and not signature):
            return True
        return self._sealing.has_signed(thought, signature)
