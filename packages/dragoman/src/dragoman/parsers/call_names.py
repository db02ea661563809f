"""The names of functions and arguments, as a parser can read them back."""

from __future__ import annotations

import re

from ..core.errors import Unsupported

# Names end at white space, a bracket, a quote, `=` or `,`; the name of an argument also
# ends at `:`.
FUNCTION_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,]*")


ARGUMENT_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,:]*")


def check_name(name: str, pattern: re.Pattern[str] = FUNCTION_NAME) -> str:
    """Return the name. Raises Unsupported if the parser could not read it back."""
    if pattern.fullmatch(name) and name:
        return name
    raise Unsupported(
        f"The name {name[:100]!r} cannot be represented in this model's tool call format."
    )


class NameReader:
    """Skips white space, and then reads all characters that may belong to a name."""

    def __init__(self, pattern: re.Pattern[str] = FUNCTION_NAME) -> None:
        self._pattern = pattern
        self._parts: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, bool]:
        """Continue reading at `pos`. Return the position after the characters read, and
        whether the name has ended.
        """
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
