"""Responses: heads parsed with llhttp in strict mode and validated, and bodies that are read in pieces.

A response whose body two clients could delimit differently is rejected (response splitting, RFC 9112, 6.3 and 11.1). A
body is either awaited or handed to a receiver as it arrives; compressed ones are decoded in bounded pieces.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

import httptools
from msgspec import Struct

HEAD_END = b"\r\n\r\n"
_PREFIX = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-5][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*)?\r\n")
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r[^\n]|(?<!\r)\n|\n[\t ]")
"""Bytes that are invalid anywhere in a head: bare CR and LF and folded lines among them."""
_CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")
MAX_PIECE = 256 * 1024
"""Decoded bytes that are held at once: a small piece can decode to a thousand times its size."""
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
MAX_BUFFERED_BYTES = 64 * 1024
"""Unread bytes of a body, above which reading from the connection pauses."""

# Errors.


class HttpClientError(Exception):
    """A request that has no response, or a response that is not complete."""


class ConnectFailed(HttpClientError):
    pass


class ConnectionLost(HttpClientError):
    """The connection ended.

    is_untouched: the request had not been written completely, and no byte of a response has arrived.
    """

    def __init__(self, message: str, *, is_untouched: bool = False) -> None:
        super().__init__(message)
        self.is_untouched = is_untouched


class ResponseTimeout(HttpClientError):
    pass


class InvalidResponse(HttpClientError):
    pass


class ClientClosed(HttpClientError):
    pass


# Heads.


class BodyFraming(Enum):
    """The four ways in which a body can end."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class ClientResponseHead(Struct, frozen=True):
    """A parsed response head.

    headers: by name in lower case; values of equal names are joined by commas.
    keeps_alive: whether the connection can be used again after the body.
    """

    status: int
    headers: Mapping[str, str]
    framing: BodyFraming
    keeps_alive: bool


class ResponseCallbacks:
    """The callbacks of llhttp for one response; httptools defines the method names.

    pieces: of the body; the caller takes them out.
    headers: of the head, with lower-case names; trailers are dropped.
    is_complete: the response has ended.
    has_excess: more bytes follow it.
    """

    __slots__ = ("_in_head", "_n_begun", "headers", "is_complete", "on_body", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self._in_head, self._n_begun = True, 0

    @property
    def has_excess(self) -> bool:
        return self._n_begun > 1

    def on_message_begin(self) -> None:
        self._n_begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self.headers.append((name.lower(), value.strip(b"\t ")))

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_message_complete(self) -> None:
        self.is_complete = True


def check_partial_head(data: bytes) -> None:
    """Reject an incomplete head early if it cannot become valid. Raises InvalidResponse."""
    if data[: len(_PREFIX)] != _PREFIX[: len(data)]:
        raise InvalidResponse("the server does not speak HTTP/1.1")


def parse_response_head(
    data: bytes,
) -> tuple[ClientResponseHead, httptools.HttpResponseParser, ResponseCallbacks]:
    """Parse a complete head, up to and including `HEAD_END`. The parser takes the body next.

    Raises:
        InvalidResponse: the head is malformed, or does not delimit its body.
    """
    if _STATUS_LINE.match(data) is None or _FORBIDDEN.search(data) is not None:
        raise InvalidResponse("the head of the response is malformed")
    callbacks = ResponseCallbacks()
    parser = httptools.HttpResponseParser(callbacks)
    try:
        parser.feed_data(data)
    except httptools.HttpParserError as error:
        raise InvalidResponse(f"the head of the response is malformed: {error}") from None
    headers: dict[str, str] = {}
    for name, value in callbacks.headers:
        key, text = name.decode("ascii", "replace"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    status = parser.get_status_code()
    framing = _find_framing(status, parser.get_http_version(), callbacks.headers)
    options = [option.strip().lower() for option in headers.get("connection", "").split(",")]
    keeps_alive = parser.get_http_version() == "1.1" and "close" not in options and framing is not BodyFraming.CLOSE
    if framing is BodyFraming.NONE and ({"content-length", "transfer-encoding"} & headers.keys()):
        # A server that sends the body nevertheless would have it taken for the next response.
        keeps_alive = False
    return ClientResponseHead(status, headers, framing, keeps_alive), parser, callbacks


def _find_framing(status: int, version: str, headers: list[tuple[bytes, bytes]]) -> BodyFraming:
    """llhttp rejects most invalid combinations, but the framing must not depend on its version."""
    # No body, whatever the headers say (RFC 9112, 6.3).
    if status < 200 or status in (204, 304):
        return BodyFraming.NONE
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if codings:
        if lengths or version != "1.1" or [coding.lower() for coding in codings] != [b"chunked"]:
            raise InvalidResponse("the response has an invalid Transfer-Encoding, or one beside a Content-Length")
        return BodyFraming.CHUNKED
    if not lengths:
        return BodyFraming.CLOSE
    if len(lengths) > 1 or _CONTENT_LENGTH.fullmatch(lengths[0]) is None:
        raise InvalidResponse("the response has an invalid Content-Length, or several")
    return BodyFraming.LENGTH


# Content codings.


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


# Bodies.

PieceReceiver = Callable[[bytes], bool]
"""Takes a piece of a body; False leaves it to the consumer. Must not raise."""


class ResponseSource(Protocol):
    """The interface of a connection that a response uses."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abandon(self, *, drain: bool) -> None:
        """The rest of the response is not wanted. drain: it is about to end, and read and dropped until then."""
        ...


class HttpResponse:
    """A response: the head has arrived. Must be closed.

    It belongs to one consumer. While that awaits `read` and has set a receiver, pieces are handed to the receiver in
    the callback of the transport: neither a future nor a coroutine is resumed for them.
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
        "status",
    )

    def __init__(self, head: ClientResponseHead, source: ResponseSource, loop: asyncio.AbstractEventLoop) -> None:
        self.status: int = head.status
        self.headers: Mapping[str, str] = head.headers
        self._source: ResponseSource | None = source
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0
        self._decoder: ContentDecoder | None = build_decoder(head.headers.get("content-encoding", "identity"))
        self._receiver: PieceReceiver | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_complete = self._is_paused = self._is_closed = self._was_interrupted = False

    # Calls of the consumer.

    def receive_directly(self, receiver: PieceReceiver) -> None:
        """Hand pieces to `receiver` while `read` is awaited. Compressed bodies are not: decoding has limits to keep."""
        if self._decoder is None:
            self._receiver = receiver

    def interrupt(self) -> None:
        """End the call of `read` that is awaited: it returns b""."""
        self._was_interrupted = True
        self._wake()

    async def read(self) -> bytes | None:
        """The bytes of the body that have arrived since the last call, at least one; None at its end.

        b"" is an interruption.

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
                was_paused, self._is_paused = self._is_paused, False
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
        """The whole body, or a part of at least `max_bytes + 1` bytes of a longer one. Raises as `read`."""
        pieces: list[bytes] = []
        size = 0
        while size <= max_bytes and (piece := await self.read()) is not None:
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def close(self, *, drain: bool = False) -> None:
        """Release the connection. It is reused only if the response is complete.

        drain: the rest of the body is not needed and about to end: read and drop it, within limits.
        """
        self._is_closed = True
        self._receiver = None
        self._pieces.clear()
        source, self._source = self._source, None
        if source is not None:
            source.abandon(drain=drain)

    # Callbacks of the connection.

    @property
    def has_unread(self) -> bool:
        """Whether the consumer is behind: a silent server is not to blame."""
        return bool(self._pieces) or self._is_paused

    def feed(self, piece: bytes, *, is_complete: bool) -> None:
        """Add a piece of the body. is_complete: it is the last; it may be empty."""
        if is_complete:
            self._is_complete, self._source, self._is_paused = True, None, False
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
                # The reader is slower than the server: TCP's flow control then slows the server down.
                if self._size > MAX_BUFFERED_BYTES and self._source is not None and not self._is_paused:
                    self._is_paused = True
                    self._source.pause_reading()
        self._wake()

    def fail(self, error: Exception) -> None:
        """The connection ended before the body, or the rest of it is invalid."""
        self._source = None
        if not self._is_complete:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
