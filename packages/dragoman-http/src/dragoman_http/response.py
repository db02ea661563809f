"""A response whose head has arrived, with its body in pieces.

The body is either awaited, or passed to a receiver as it arrives.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from .errors import InvalidResponse
from .response_head import ClientResponseHead

MAX_PIECE = 256 * 1024
"""Limit of the decoded bytes that are held at once: a piece can decode to a thousand
times its size.
"""
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""zlib's `wbits` by content coding: the largest window; 16 is added for gzip's header.
"""
MAX_BUFFERED_BYTES = 64 * 1024
"""Unread bytes of a body, above which reading from the connection pauses."""


class ContentDecoder:
    """Decodes gzip and deflate; also deflate without the zlib header, as some servers
    send it (RFC 9110, 8.4.1.2).
    """

    __slots__ = ("_decompressor", "_has_begun", "_has_more", "_is_deflate", "_pending")

    def __init__(self, coding: str) -> None:
        self._decompressor = zlib.decompressobj(_WINDOW[coding])
        self._is_deflate = coding == "deflate"
        self._has_begun = False
        self._pending = b""
        self._has_more = False

    def feed(self, data: bytes) -> None:
        """Add encoded bytes. May be called only after `take` has returned b""."""
        self._pending += data

    def take(self) -> bytes:
        """Return the next decoded bytes, at most `MAX_PIECE`; b"" if more input is
        needed. Raises InvalidResponse.
        """
        if not self._pending and not self._has_more:
            return b""
        data = self._pending
        self._pending = b""
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
        """Check that the compressed data ended with the body. Raises InvalidResponse if
        it did not.
        """
        if self._has_begun and not self._decompressor.eof:
            raise InvalidResponse("the compressed body was cut off")

    def _decompress(self, data: bytes) -> bytes:
        is_first = not self._has_begun
        self._has_begun = True
        try:
            return self._decompressor.decompress(data, MAX_PIECE)
        except zlib.error:
            if not self._is_deflate or not is_first:
                raise
            # `deflate` means the zlib format (RFC 9110, 8.4.1.2), but some servers send
            # raw deflate data.
            self._decompressor = zlib.decompressobj(-15)
            return self._decompressor.decompress(data, MAX_PIECE)


def build_decoder(content_encoding: str) -> ContentDecoder | None:
    """Build the decoder of a body; None if the body is not encoded. Raises
    InvalidResponse for other codings.
    """
    coding = content_encoding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _WINDOW:
        raise InvalidResponse("the body has a content coding that was not requested")
    return ContentDecoder(coding)


PieceReceiver = Callable[[bytes], bool]
"""Called with a piece of a body; returns whether it was consumed. If not, `read`
returns the piece. Must not raise.
"""


class ResponseSource(Protocol):
    """The interface of a connection that a response uses."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abandon(self, *, drain: bool) -> None:
        """Give up the response before its end.

        drain: the response is about to end: read and drop the remaining bytes, to keep
            the connection.
        """
        ...


class HttpResponse:
    """A response whose head has arrived. It has one consumer, which must close it.

    While the consumer awaits `read` and has set a receiver, pieces are passed to the
    receiver in the callback of the transport, without resuming a future or a coroutine.

    headers: by name in lower case; values of equal names are joined by commas.
    raw_headers: the same as pairs, in the order in which they were sent.
    is_decoded: whether a compressed body is decoded.
    """

    __slots__ = (
        "_decoder",
        "_error",
        "_is_closed",
        "_is_complete",
        "_is_paused",
        "_loop",
        "_pieces",
        "_receiver",
        "_size",
        "_source",
        "_waiter",
        "_was_interrupted",
        "headers",
        "raw_headers",
        "status",
    )

    def __init__(
        self,
        head: ClientResponseHead,
        source: ResponseSource,
        loop: asyncio.AbstractEventLoop,
        *,
        is_decoded: bool = True,
    ) -> None:
        self.status: int = head.status
        self.headers: Mapping[str, str] = head.headers
        self.raw_headers = head.raw_headers
        self._source: ResponseSource | None = source
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0
        self._decoder: ContentDecoder | None = (
            build_decoder(head.headers.get("content-encoding", "identity")) if is_decoded else None
        )
        self._receiver: PieceReceiver | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_complete = False
        self._is_paused = False
        self._is_closed = False
        self._was_interrupted = False

    def receive_directly(self, receiver: PieceReceiver) -> None:
        """Pass pieces to `receiver` while `read` is awaited. Ignored for a compressed
        body, which `read` decodes.
        """
        if self._decoder is None:
            self._receiver = receiver

    def interrupt(self) -> None:
        """Let the call of `read` that is being awaited return b""."""
        self._was_interrupted = True
        self._wake()

    async def read(self) -> bytes | None:
        """Return the bytes of the body that have arrived since the last call, at least
        one; None at its end.

        Returns b"" after `interrupt`.

        Raises:
            HttpClientError: the body is not complete.
        """
        while True:
            if self._decoder is not None and (decoded := self._decoder.take()):
                return decoded
            pieces = self._pieces
            if pieces:
                piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
                self._size = 0
                was_paused = self._is_paused
                self._is_paused = False
                if was_paused and self._source is not None:
                    self._source.resume_reading()
                if self._decoder is None:
                    return piece
                self._decoder.feed(piece)
                continue
            if self._was_interrupted:
                self._was_interrupted = False
                return b""
            if self._error is not None:
                raise self._error
            if self._is_complete:
                if self._decoder is not None:
                    self._decoder.finish()
                return None
            self._waiter = waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None

    async def read_all(self, max_bytes: int) -> bytes:
        """Return the whole body; of a body longer than `max_bytes`, at least the first
        `max_bytes + 1` bytes.

        Raises:
            HttpClientError: the body is not complete.
        """
        pieces: list[bytes] = []
        size = 0
        while size <= max_bytes and (piece := await self.read()) is not None:
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def close(self, *, drain: bool = False) -> None:
        """Release the connection. It is reused only if the response is complete.

        drain: the body is about to end: read and drop the remaining bytes, within
            limits, to reuse the connection.
        """
        self._is_closed = True
        self._receiver = None
        self._pieces.clear()
        source = self._source
        self._source = None
        if source is not None:
            source.abandon(drain=drain)

    @property
    def has_unread(self) -> bool:
        """Whether the consumer has not read all pieces; then silence of the server is
        not a timeout.
        """
        return bool(self._pieces) or self._is_paused

    def feed(self, piece: bytes, *, is_complete: bool) -> None:
        """Add a piece of the body.

        is_complete: the piece is the last one; it may be empty.
        """
        if is_complete:
            self._is_complete = True
            self._source = None
            self._is_paused = False
        if self._is_closed:
            return
        waiter = self._waiter
        if piece:
            if (
                self._receiver is not None
                and waiter is not None
                and not waiter.done()
                and not self._pieces
                and self._receiver(piece)
            ):
                if not is_complete:
                    return
            else:
                self._pieces.append(piece)
                self._size += len(piece)
                # Backpressure: the consumer is slower than the server, and TCP's flow
                # control slows the server down.
                if (
                    self._size > MAX_BUFFERED_BYTES
                    and self._source is not None
                    and not self._is_paused
                ):
                    self._is_paused = True
                    self._source.pause_reading()
        self._wake()

    def fail(self, error: Exception) -> None:
        """Fail the response: the connection was closed before the end of the body, or
        the body is invalid.
        """
        self._source = None
        if not self._is_complete:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
