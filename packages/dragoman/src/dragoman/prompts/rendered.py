"""A rendered conversation."""

from __future__ import annotations

from msgspec import Struct

_MAX_TAIL_CHARS = 64


class Rendered(Struct, frozen=True):
    """A rendered conversation.

    text: the prompt.
    ids: its token ids.
    tail: the end of the text from the start of the assistant's turn; empty if it does
        not start.
    ignored_options: options that the template does not read; for a warning.
    """

    text: str
    ids: tuple[int, ...]
    tail: str
    ignored_options: tuple[str, ...] = ()


def cut_tail(text: str) -> str:
    """Return the tail of a text in which the assistant's turn starts at an unknown
    place.
    """
    return text[-_MAX_TAIL_CHARS:]
