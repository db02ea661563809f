"""Characters that occur in no text of a request, with which rendered texts are marked."""

from __future__ import annotations

import json
from itertools import islice

from msgspec import Struct

from ..core.errors import RequestError

_NONCHARACTERS = (
    *range(0xFDD0, 0xFDF0),
    *(plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF)),
)


class Marks(Struct, frozen=True):
    """Two characters that occur in no text.

    break_char: breaks control tokens, see `control_tokens`.
    marker_char: marks the beginning of the generation prompt, or the end of a message.
    """

    break_char: str
    marker_char: str

    def may_occur_in(self, text: str) -> bool:
        """Whether they occur in a text, also as JSON escapes, or it is not Unicode."""
        if "\\u" in text:
            return True
        if text.isascii():
            return False
        try:
            text.encode()
        except UnicodeEncodeError:
            return True
        return self.break_char in text or self.marker_char in text


USUAL_MARKS = Marks(chr(_NONCHARACTERS[0]), chr(_NONCHARACTERS[1]))


def may_have_usual_marks(data: bytes) -> bool:
    """Whether the usual marks may occur in UTF-8, also as JSON escapes, however deeply
    these are nested.
    """
    # The first bytes of both.
    return b"\xef\xb7" in data or b"\\u" in data


def choose_unused_chars(texts: str) -> Marks:
    """Choose two characters that occur nowhere in the texts, not even as JSON escapes."""
    # Noncharacters are never assigned (Unicode, 23.7), so real text rarely has any; 66
    # exist to choose from.
    unused_chars = (
        char
        for char in map(chr, _NONCHARACTERS)
        if char not in texts and escape_char(char) not in texts
    )
    chars = tuple(islice(unused_chars, 2))
    if len(chars) < 2:
        raise RequestError("The messages use every noncharacter of Unicode.", param="messages")
    return Marks(*chars)


def escape_char(char: str) -> str:
    """Return the character as ASCII-only JSON escapes it."""
    return json.dumps(char)[1:-1]
