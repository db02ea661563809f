"""What a client sent that is no request."""

from __future__ import annotations


class Refused(Exception):
    """words: for the client and the log; nothing in them comes from the request. lines: of headers, with their ends."""

    def __init__(self, status: int, words: str, lines: bytes = b"") -> None:
        super().__init__(words)
        self.status, self.words, self.lines = status, words, lines
