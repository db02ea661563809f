"""Decompression of request bodies (Content-Encoding), with a limit of the decoded size."""

from __future__ import annotations

import zlib
from typing import Protocol

import brotli
import zstandard

from ..core.errors import BodyTooLarge, RequestError, UnsupportedMediaType

SUPPORTED_CODINGS = "br, gzip, deflate, zstd"


def decode_content(data: bytes, coding: str, limit: int) -> bytes:
    try:
        if coding in ("gzip", "x-gzip"):
            return _decompress_zlib(zlib.decompressobj(16 + zlib.MAX_WBITS), data, limit)
        if coding == "deflate":
            # RFC 9110, 8.4.1.2 specifies the zlib format; some clients send raw
            # deflate.
            has_zlib_header = data[:1] in (
                b"\x78",
                b"\x58",
                b"\x48",
                b"\x38",
                b"\x28",
                b"\x18",
                b"\x08",
            )
            return _decompress_zlib(
                zlib.decompressobj(zlib.MAX_WBITS if has_zlib_header else -zlib.MAX_WBITS),
                data,
                limit,
            )
        if coding == "zstd":
            return _decompress_zstd(data, limit)
        if coding == "br":
            return _decompress_brotli(data, limit)
    except (brotli.error, zlib.error, zstandard.ZstdError, EOFError) as error:
        raise RequestError(f"The body is not valid {coding}.") from error
    raise UnsupportedMediaType(
        f"Content-Encoding `{coding[:40]}` is not supported; use one of {SUPPORTED_CODINGS}."
    )


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def _decompress_zlib(stream: _Inflater, data: bytes, limit: int) -> bytes:
    # One byte more than allowed is enough to know that the limit is exceeded.
    decoded = stream.decompress(data, limit + 1)
    if len(decoded) > limit:
        raise build_too_large_error(limit)
    if not stream.eof:
        raise EOFError
    return decoded


def _decompress_brotli(data: bytes, limit: int) -> bytes:
    stream = brotli.Decompressor()
    # The library stops soon after the limit of a call; further calls, without input,
    # return more of the output.
    chunks = [stream.process(data, output_buffer_limit=limit + 1)]
    while not stream.is_finished():
        if sum(map(len, chunks)) > limit:
            raise build_too_large_error(limit)
        if not chunks[-1]:
            raise EOFError
        chunks.append(stream.process(b"", output_buffer_limit=limit + 1))
    decoded = b"".join(chunks)
    if len(decoded) > limit:
        raise build_too_large_error(limit)
    return decoded


def _decompress_zstd(data: bytes, limit: int) -> bytes:
    # The reader yields at most the requested bytes, so a decompression bomb costs no
    # more than the limit, but it does not detect a truncated frame. Once the size is
    # known to be safe, a decompression object detects that. Windows over 8 MiB are
    # rejected, as RFC 8878 recommends for content codings.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 23)
    with decompressor.stream_reader(data) as reader:
        if len(reader.read(limit + 1)) > limit:
            raise build_too_large_error(limit)
    checker = decompressor.decompressobj()
    decoded = checker.decompress(data)
    if not checker.eof:
        raise EOFError
    return decoded


def build_too_large_error(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the limit of {limit} bytes.")
