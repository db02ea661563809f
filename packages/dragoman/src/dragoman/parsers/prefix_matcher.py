"""Matches the longest of some markers at the start of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

_WHITESPACE = re.compile(r"[ \t\r\n]*")


class PrefixResult(Enum):
    """The result of `PrefixMatcher.read`."""

    INCOMPLETE = "more"
    """All text has been read, and more is needed for a result."""
    MATCHED = "mark"
    NO_MATCH = "other"


class PrefixMatcher:
    """Matches the longest of some markers at the start of a text, after optional white
    space.
    """

    __slots__ = ("_candidates", "marker", "matched")

    def __init__(self, markers: Sequence[str]) -> None:
        self._candidates = markers
        self.marker = ""
        """The longest marker that has been read completely."""
        self.matched: int = 0
        """Characters of markers that have been read."""

    def read(self, text: str, pos: int) -> tuple[int, PrefixResult]:
        """Read text[pos:]. Returns the position after the marker, or that of the first
        character that is in no marker.

        If one marker is a prefix of another, the position may be before `pos`; if
        negative, it is in an earlier delta.
        """
        if not self.matched:
            whitespace = _WHITESPACE.match(text, pos)
            pos = whitespace.end() if whitespace else pos
        while pos < len(text):
            # All candidates begin with the text read so far, so the next character
            # decides which of them remain.
            candidates = [
                marker for marker in self._candidates if marker.startswith(text[pos], self.matched)
            ]
            if not candidates:
                return (
                    (pos - self.matched + len(self.marker), PrefixResult.MATCHED)
                    if self.marker
                    else (pos, PrefixResult.NO_MATCH)
                )
            pos += 1
            self.matched += 1
            self._candidates = candidates
            self.marker = next(
                (marker for marker in candidates if len(marker) == self.matched), self.marker
            )
            if len(self.marker) == self.matched and len(candidates) == 1:
                return pos, PrefixResult.MATCHED
        return pos, PrefixResult.INCOMPLETE
