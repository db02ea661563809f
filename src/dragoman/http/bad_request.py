"""What a client sent that is no request."""

from __future__ import annotations


class BadRequest(Exception):
    """words: for the client and the log; nothing in them comes from the request. lines: of headers, with their ends."""

    def __init__(self, status: int, message: str, lines: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.message, self.lines = status, message, lines
