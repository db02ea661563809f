"""Readers of request bodies, by their framing (RFC 9112). Do no I/O."""

from __future__ import annotations

import re

from .bad_request import BadRequest

MAX_LINE = 1024
"""Limit of a line of the chunked coding, bytes."""


MAX_TRAILERS = 8 * 1024
"""Limit of all trailers together, bytes."""


# Size in hexadecimal digits, with optional extensions, and a trailer field (RFC 9112,
# 7.1).
_CHUNK_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")


_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class ContentLengthReader:
    """Reads a body of a fixed length (RFC 9112, 6.2)."""

    __slots__ = ("_remaining",)

    def __init__(self, length: int) -> None:
        self._remaining = length

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Return the body's bytes in `data` and what follows the body, or None while
        the body is incomplete.
        """
        remaining = self._remaining
        if len(data) < remaining:
            self._remaining -= len(data)
            return data, None
        return data[:remaining], data[remaining:]


class ChunkedReader:
    """Reads a chunked body (RFC 9112, 7.1). Extensions and trailers are validated and
    dropped.
    """

    __slots__ = ("_parse_next", "_partial_line", "_remaining", "_trailer_bytes")

    def __init__(self) -> None:
        self._remaining = self._trailer_bytes = 0
        self._partial_line = b""
        # A plain function: a bound method would make a reference cycle.
        self._parse_next = ChunkedReader._parse_size

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Return the body's bytes in `data` and what follows the body, or None while
        the body is incomplete.

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
            end = data.find(b"\n", offset) + 1
            line = self._partial_line + data[offset : end or len(data)]
            # Incomplete lines are checked too: otherwise a line without an end would be
            # buffered without limit.
            if len(line) > (2 if self._parse_next is ChunkedReader._parse_chunk_end else MAX_LINE):
                raise BadRequest(400, "The body's chunks are malformed.")
            if not end:
                self._partial_line = line
                break
            self._partial_line = b""
            offset = end
            if self._parse_next(self, line):
                return b"".join(chunks), data[offset:]
        return b"".join(chunks), None

    def _parse_size(self, line: bytes) -> bool:
        match = _CHUNK_SIZE_LINE.fullmatch(line)
        if match is None:
            raise BadRequest(400, "The size of one of the body's chunks is malformed.")
        self._remaining = int(match[1], 16)
        self._parse_next = (
            ChunkedReader._parse_chunk_end if self._remaining else ChunkedReader._parse_trailer
        )
        return False

    def _parse_chunk_end(self, line: bytes) -> bool:
        if line != b"\r\n":
            raise BadRequest(400, "One of the body's chunks does not have the stated size.")
        self._parse_next = ChunkedReader._parse_size
        return False

    def _parse_trailer(self, line: bytes) -> bool:
        self._trailer_bytes += len(line)
        if self._trailer_bytes > MAX_TRAILERS:
            raise BadRequest(
                431,
                f"The body's trailers are larger than the {MAX_TRAILERS} bytes that are allowed.",
            )
        if line != b"\r\n" and _TRAILER_LINE.fullmatch(line) is None:
            raise BadRequest(400, "The body's trailers are malformed.")
        return line == b"\r\n"


BodyReader = ContentLengthReader | ChunkedReader
