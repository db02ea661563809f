"""The error of a request that the server rejects."""

from __future__ import annotations


class BadRequest(Exception):
    """A request that the server rejects.

    status: of the response.
    message: for the client and the log; contains nothing from the request.
    lines: extra header lines, each with its CRLF.
    """

    def __init__(self, status: int, message: str, lines: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.lines = lines
