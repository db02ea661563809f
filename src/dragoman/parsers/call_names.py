"""Reads names of functions and arguments outside JSON. Knows no markers."""

from __future__ import annotations

import re

from ..core.errors import Unsupported

FUNCTION_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,]*")
ARGUMENT_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,:]*")


def check_name(name: str, pattern: re.Pattern[str] = FUNCTION_NAME) -> str:
    """The name, if the parser can read it back. Raises Unsupported."""
    if pattern.fullmatch(name) and name:
        return name
    raise Unsupported(f"The name {name[:100]!r} cannot be represented in this model's tool call format.")


class NameReader:
    """Reads blanks, and then all characters that may belong to a name."""

    def __init__(self, pattern: re.Pattern[str] = FUNCTION_NAME) -> None:
        self._pattern = pattern
        self._parts: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, bool]:
        """The position after the characters read, and whether the name has ended."""
        if not self._parts:
            while pos < len(text) and text[pos].isspace():
                pos += 1
        match = self._pattern.match(text, pos)
        end = pos if match is None else match.end()
        if end > pos:
            self._parts.append(text[pos:end])
        return end, end < len(text)

    @property
    def name(self) -> str:
        return "".join(self._parts)
