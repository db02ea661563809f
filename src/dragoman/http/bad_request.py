"""The error for a malformed or unacceptable request."""

from __future__ import annotations


class BadRequest(Exception):
    """A request that the server rejects.

    message: for the client and the log; contains nothing from the request.
    lines: extra header lines, each with its CRLF.
    """

    def __init__(self, status: int, message: str, lines: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.message, self.lines = status, message, lines
