"""Body readers: find where a request's body ends and decode it, by Content-Length or chunked. Pure state machines.

`BadRequest` is the error for a malformed or unacceptable request, here and in `head`.
"""

from __future__ import annotations

import re


class BadRequest(Exception):
    """A request that the server rejects.

    message: for the client and the log; contains nothing from the request.
    lines: extra header lines, each with its CRLF.
    """

    def __init__(self, status: int, message: str, lines: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.message, self.lines = status, message, lines


MAX_LINE = 1024
"""Bytes of a chunk-size line."""
MAX_TRAILERS = 8 * 1024

_CHUNK_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class ContentLengthReader:
    """Reads a body of a fixed length (RFC 9112, 6.2)."""

    __slots__ = ("_remaining",)

    def __init__(self, length: int) -> None:
        self._remaining = length

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Return the body's bytes in `data` and what follows the body, or None while the body is incomplete."""
        remaining = self._remaining
        if len(data) < remaining:
            self._remaining -= len(data)
            return data, None
        return data[:remaining], data[remaining:]


class ChunkedReader:
    """Reads a chunked body (RFC 9112, 7.1). Extensions and trailers are validated and dropped."""

    __slots__ = ("_parse_next", "_partial_line", "_remaining", "_trailer_bytes")

    def __init__(self) -> None:
        self._remaining = self._trailer_bytes = 0
        self._partial_line = b""
        # A plain function: a bound method would make a reference cycle.
        self._parse_next = ChunkedReader._parse_size

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """As `ContentLengthReader.feed`.

        Raises:
            BadRequest: the chunked coding is malformed.
        """
        chunks: list[bytes] = []
        offset = 0
        while offset < len(data):
            if self._remaining:
                chunks.append(data[offset : offset + self._remaining])
                offset += len(chunks[-1])
                self._remaining -= len(chunks[-1])
                continue
            line, offset = self._take_line(data, offset)
            if line is not None and self._parse_next(self, line):
                return b"".join(chunks), data[offset:]
        return b"".join(chunks), None

    def _take_line(self, data: bytes, offset: int) -> tuple[bytes | None, int]:
        """Return the line at `offset` with its CRLF (None while incomplete) and the offset of the next line."""
        end = data.find(b"\n", offset) + 1
        line = self._partial_line + data[offset : end or len(data)]
        # Checked while the line is incomplete too: otherwise one without an end would be buffered as a whole.
        if len(line) > (2 if self._parse_next is ChunkedReader._parse_chunk_end else MAX_LINE):
            raise BadRequest(400, "The body's chunks are malformed.")
        self._partial_line = b"" if end else line
        return (line if end else None), end or len(data)

    def _parse_size(self, line: bytes) -> bool:
        match = _CHUNK_SIZE_LINE.fullmatch(line)
        if match is None:
            raise BadRequest(400, "The size of one of the body's chunks is malformed.")
        self._remaining = int(match[1], 16)
        self._parse_next = ChunkedReader._parse_chunk_end if self._remaining else ChunkedReader._parse_trailer
        return False

    def _parse_chunk_end(self, line: bytes) -> bool:
        if line != b"\r\n":
            raise BadRequest(400, "One of the body's chunks does not end where it says.")
        self._parse_next = ChunkedReader._parse_size
        return False

    def _parse_trailer(self, line: bytes) -> bool:
        self._trailer_bytes += len(line)
        if self._trailer_bytes > MAX_TRAILERS:
            raise BadRequest(431, f"The body's trailers are larger than the {MAX_TRAILERS} bytes that are allowed.")
        if line != b"\r\n" and _TRAILER_LINE.fullmatch(line) is None:
            raise BadRequest(400, "The body's trailers are malformed.")
        return line == b"\r\n"


BodyReader = ContentLengthReader | ChunkedReader
