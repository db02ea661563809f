"""Reading the name of a function or an argument where it does not stand in JSON. Knows no marks."""

from __future__ import annotations

import re

from ..core.errors import Unsupported

FUNCTION = re.compile(r"[^\s<>(){}\[\]\"'=,]*")
ARGUMENT = re.compile(r"[^\s<>(){}\[\]\"'=,:]*")


def written(name: str, chars: re.Pattern[str] = FUNCTION) -> str:
    """The name, if it can be read back. Raises Unsupported."""
    if chars.fullmatch(name) and name:
        return name
    raise Unsupported(f"The name {name[:100]!r} cannot be represented in this model's tool call format.")


class NameReader:
    """Blanks, and then all that may belong to a name."""

    def __init__(self, chars: re.Pattern[str] = FUNCTION) -> None:
        self._chars = chars
        self._parts: list[str] = []

    def read(self, text: str, at: int) -> tuple[int, bool]:
        """The position behind what was read, and whether the name is over."""
        if not self._parts:
            while at < len(text) and text[at].isspace():
                at += 1
        found = self._chars.match(text, at)
        end = at if found is None else found.end()
        if end > at:
            self._parts.append(text[at:end])
        return end, end < len(text)

    @property
    def name(self) -> str:
        return "".join(self._parts)
