"""Where a request's body ends, and what is in it: counted or chunked. Pure; nothing is kept but the position.

What follows the body in the same bytes is given back: it is the next request.
"""

from __future__ import annotations

import re

from .refused import Refused

MAX_LINE = 1024
"""Bytes of a line that tells a chunk's size."""
MAX_TRAILERS = 8 * 1024

_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class Counted:
    """A body of so many bytes."""

    __slots__ = ("_left",)

    def __init__(self, length: int) -> None:
        self._left = length

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """What of it is body, and what comes after the body: None while that is not over."""
        left = self._left
        if len(data) < left:
            self._left -= len(data)
            return data, None
        return data[:left], data[left:]


class Chunked:
    """A body in chunks (RFC 9112, 7.1). Extensions and trailers are checked and dropped."""

    __slots__ = ("_left", "_line", "_read", "_trailers")

    def __init__(self) -> None:
        self._left = self._trailers = 0
        self._line = b""
        # A plain function: bound to this body it would be a cycle.
        self._read = Chunked._size

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """As `Counted.feed`. Raises Refused."""
        pieces: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                pieces.append(data[at : at + self._left])
                at += len(pieces[-1])
                self._left -= len(pieces[-1])
                continue
            line, at = self._line_of(data, at)
            if line is not None and self._read(self, line):
                return b"".join(pieces), data[at:]
        return b"".join(pieces), None

    def _line_of(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """The line that begins at `at`, with its end, and where the next begins; None while it has no end."""
        end = data.find(b"\n", at) + 1
        line = self._line + data[at : end or len(data)]
        if len(line) > (2 if self._read is Chunked._end else MAX_LINE):
            raise Refused(400, "The body's chunks are malformed.")
        self._line = b"" if end else line
        return (line if end else None), end or len(data)

    def _size(self, line: bytes) -> bool:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise Refused(400, "The size of one of the body's chunks is malformed.")
        self._left = int(found[1], 16)
        self._read = Chunked._end if self._left else Chunked._trailer
        return False

    def _end(self, line: bytes) -> bool:
        if line != b"\r\n":
            raise Refused(400, "One of the body's chunks does not end where it says.")
        self._read = Chunked._size
        return False

    def _trailer(self, line: bytes) -> bool:
        self._trailers += len(line)
        if self._trailers > MAX_TRAILERS:
            raise Refused(431, f"The body's trailers are larger than the {MAX_TRAILERS} bytes that are allowed.")
        if line != b"\r\n" and _TRAILER.fullmatch(line) is None:
            raise Refused(400, "The body's trailers are malformed.")
        return line == b"\r\n"


Body = Counted | Chunked
