"""Decoding of compressed bodies, in bounded pieces. Pure."""

from __future__ import annotations

import zlib

from .errors import InvalidResponse

MAX_PIECE = 256 * 1024
"""Decoded bytes that are held at once: a small piece can decode to a thousand times its size."""
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class ContentDecoder:
    """Decodes gzip, or deflate with the zlib header or without it, as old servers send it (RFC 9110, 8.4.1.2)."""

    __slots__ = ("_decompressor", "_has_begun", "_has_more", "_is_deflate", "_pending")

    def __init__(self, coding: str) -> None:
        self._decompressor = zlib.decompressobj(_WINDOW[coding])
        self._is_deflate, self._has_begun = coding == "deflate", False
        self._pending, self._has_more = b"", False

    def feed(self, data: bytes) -> None:
        """Add encoded bytes. Only after `take` has returned all that the earlier ones decode to."""
        self._pending += data

    def take(self) -> bytes:
        """The next decoded bytes, at most `MAX_PIECE`; b"" if more input is needed. Raises InvalidResponse."""
        if not self._pending and not self._has_more:
            return b""
        data, self._pending = self._pending, b""
        if data and self._decompressor.eof:
            raise InvalidResponse("the compressed body goes on after its end")
        try:
            decoded = self._decompress(data)
        except zlib.error as error:
            raise InvalidResponse(f"the compressed body is invalid: {error}") from None
        self._pending = self._decompressor.unconsumed_tail
        # zlib may hold decoded bytes although it has consumed all input.
        self._has_more = len(decoded) == MAX_PIECE
        if self._decompressor.unused_data:
            raise InvalidResponse("the compressed body goes on after its end")
        return decoded

    def finish(self) -> None:
        """The body has ended. Raises InvalidResponse if the compressed data has not."""
        if self._has_begun and not self._decompressor.eof:
            raise InvalidResponse("the compressed body was cut off")

    def _decompress(self, data: bytes) -> bytes:
        is_first, self._has_begun = not self._has_begun, True
        try:
            return self._decompressor.decompress(data, MAX_PIECE)
        except zlib.error:
            if not self._is_deflate or not is_first:
                raise
            # `deflate` is the zlib format (RFC 9110, 8.4.1.2), but some servers send the raw one.
            self._decompressor = zlib.decompressobj(-15)
            return self._decompressor.decompress(data, MAX_PIECE)


def build_decoder(content_encoding: str) -> ContentDecoder | None:
    """The decoder of a body; None for one that is not encoded. Raises InvalidResponse for other codings."""
    coding = content_encoding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _WINDOW:
        raise InvalidResponse("the body has a content coding that was not requested")
    return ContentDecoder(coding)
