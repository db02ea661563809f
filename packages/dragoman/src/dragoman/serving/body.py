"""Request bodies: reading with a size limit and a shared memory budget, and decoding of
content codings.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import anyio.to_thread
import brotli
import zstandard
from starlette.datastructures import Headers
from starlette.types import Receive

from ..core.errors import BodyTooLarge, Overloaded, RequestError, UnsupportedMediaType

SUPPORTED_CODINGS = "br, gzip, deflate, zstd"


class ClientGone(Exception):
    """Raised if the client disconnects before its request is complete."""


class BodyMemoryBudget:
    """The memory budget for all request bodies in flight, in bytes. A body that is
    alone may exceed `limit`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class BodyMemoryShare:
    """The part of the budget that one request uses, from the first byte of its body
    until it is parsed.
    """

    __slots__ = ("_budget", "_reserved")

    def __init__(self, budget: BodyMemoryBudget) -> None:
        self._budget = budget
        self._reserved = 0

    def reserve(self, size: int) -> None:
        """Set the share to `size` bytes; shrinking always succeeds.

        Raises:
            Overloaded: the budget is exhausted.
        """
        # Without other bodies in flight the budget does not apply: only the limit of a
        # single body does.
        budget = self._budget
        used_by_others = self._budget.used - self._reserved
        if size > self._reserved and used_by_others and used_by_others + size > budget.limit:
            raise Overloaded("The memory for request bodies is exhausted; retry later.")
        budget.used = used_by_others + size
        self._reserved = size

    def release(self) -> None:
        self.reserve(0)


async def read_body(
    receive: Receive, headers: Headers, limit: int, share: BodyMemoryShare | None = None
) -> bytes:
    """Read and decode the body, at most `limit` bytes both on the wire and decoded.

    share: accounts for the body's memory; None means no budget.

    Raises:
        BodyTooLarge: the body exceeds the limit.
        UnsupportedMediaType: the content coding is unknown.
        RequestError: the compressed body is corrupt.
        ClientGone: the client has disconnected.
        Overloaded: the memory budget is exhausted.
    """
    share = share or BodyMemoryShare(BodyMemoryBudget(limit))
    declared = headers.get("content-length", "")
    # A body that is too large by its Content-Length is rejected before it is read. 19
    # digits: int() is quadratic.
    if declared.isdecimal() and int(declared[:19]) > limit:
        raise _build_too_large_error(limit)
    # A list of several codings matches none of those below and is rejected.
    coding = headers.get("content-encoding", "identity").strip().lower()
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _build_too_large_error(limit)
        # Reserved before the chunk is appended, so that the budget limits the memory in
        # use.
        share.reserve(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            break
    data = b"".join(chunks)
    if coding in ("identity", ""):
        return data
    # Reserve the worst case: the decoded size is unknown until decompression ends.
    share.reserve(size + limit)
    # In a thread: decompression to 32 MiB would block the event loop, and all streams.
    decoded = await anyio.to_thread.run_sync(_decode, data, coding, limit)
    share.reserve(len(decoded))
    return decoded


def _decode(data: bytes, coding: str, limit: int) -> bytes:
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
        raise _build_too_large_error(limit)
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
            raise _build_too_large_error(limit)
        if not chunks[-1]:
            raise EOFError
        chunks.append(stream.process(b"", output_buffer_limit=limit + 1))
    decoded = b"".join(chunks)
    if len(decoded) > limit:
        raise _build_too_large_error(limit)
    return decoded


def _decompress_zstd(data: bytes, limit: int) -> bytes:
    # The reader yields at most the requested bytes, so a decompression bomb costs no
    # more than the limit, but it does not detect a truncated frame. Once the size is
    # known to be safe, a decompression object detects that. Windows over 8 MiB are
    # rejected, as RFC 8878 recommends for content codings.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 23)
    with decompressor.stream_reader(data) as reader:
        if len(reader.read(limit + 1)) > limit:
            raise _build_too_large_error(limit)
    checker = decompressor.decompressobj()
    decoded = checker.decompress(data)
    if not checker.eof:
        raise EOFError
    return decoded


def _build_too_large_error(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the limit of {limit} bytes.")
