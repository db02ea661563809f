"""Serialization of response heads. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus

from msgspec import Struct

# Header lines: a token, and a value without control characters (RFC 9110, 5.1 and 5.5).
_HEADER_BLOCK = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*\r\n)*")

# Fields of the connection and the framing. Transfer-Encoding is dropped: the server
# chooses the framing.
_FRAMING_FIELDS = frozenset({b"connection: ", b"content-length: ", b"transfer-encoding: "})
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# Final statuses only: an application may not send an interim response (1xx).
_STATUS_LINES: Mapping[int, bytes] = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    for status in range(200, 600)
}


class ChunkedFraming:
    """Chunked transfer coding, for a body of unknown length (RFC 9112, 7.1)."""

    __slots__ = ()

    def frame(self, body: bytes, more_body: bool) -> bytes:
        """Serialize one piece of the body.

        more_body: whether another piece may follow.
        """
        if more_body:
            return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"


class ContentLengthFraming:
    """A body of the length that Content-Length states."""

    __slots__ = ("_remaining",)

    def __init__(self, length: int) -> None:
        self._remaining = length

    def frame(self, body: bytes, more_body: bool) -> bytes:
        """Serialize one piece. Raises RuntimeError if the body is longer or shorter
        than Content-Length.
        """
        self._remaining -= len(body)
        if self._remaining < 0:
            raise RuntimeError("Response content longer than Content-Length")
        if self._remaining and not more_body:
            raise RuntimeError("Response content shorter than Content-Length")
        return body


class CloseDelimitedFraming:
    """A body that ends with the connection, for HTTP/1.0, which has no chunked coding."""

    __slots__ = ()

    def frame(self, body: bytes, more_body: bool) -> bytes:  # noqa: ARG002
        return body


class HeadRequestFraming:
    """The response to a HEAD request: the headers of a GET without the body."""

    __slots__ = ()

    def frame(self, body: bytes, more_body: bool) -> bytes:  # noqa: ARG002
        return b""


class NoContentFraming:
    """A response with a status that allows no body (204, 304)."""

    __slots__ = ()

    def frame(self, body: bytes, more_body: bool) -> bytes:  # noqa: ARG002
        """Return b"". Raises RuntimeError if there is a body."""
        if body:
            raise RuntimeError("Response content for a status that allows none")
        return b""


# These framings have no state, so all responses share one instance of each.
_CHUNKED = ChunkedFraming()
_CLOSE_DELIMITED = CloseDelimitedFraming()
_HEAD_REQUEST = HeadRequestFraming()
_NO_CONTENT = NoContentFraming()

Framing = (
    ChunkedFraming
    | ContentLengthFraming
    | CloseDelimitedFraming
    | HeadRequestFraming
    | NoContentFraming
)


class ResponseHead(Struct, frozen=True):
    """The serialized start of a response.

    head: bytes to write.
    keeps_alive: false also when the application sent `connection: close`.
    """

    head: bytes
    framing: Framing
    keeps_alive: bool


@lru_cache(maxsize=256)
def _render_name(name: bytes) -> bytes:
    """Render the start of a header's line. Nearly all responses have the same names."""
    return name.lower() + b": "


def build_response_head(
    status: int,
    fields: Iterable[tuple[bytes, bytes]],
    common_lines: bytes,
    *,
    method: str,
    version: str,
    keeps_alive: bool,
) -> ResponseHead:
    """Serialize a response's status line and headers, and choose the framing.

    common_lines: header lines of every response.
    method, version: of the request.

    Raises:
        RuntimeError: the status or a header is invalid.
    """
    if status not in _STATUS_LINES:
        raise RuntimeError(f"{status} is not a valid response status")
    lines: list[bytes] = []
    length: int | None = None
    for name, value in fields:
        start = _render_name(name)
        if start not in _FRAMING_FIELDS:
            lines.append(b"%b%b\r\n" % (start, value))
        elif start == b"connection: ":
            keeps_alive = keeps_alive and b"close" not in value.lower().replace(b" ", b"").split(
                b","
            )
        elif start == b"content-length: ":
            if length is not None or not value.isdigit():
                raise RuntimeError(
                    "A response's Content-Length is not a number, or occurs more than once"
                )
            length = int(value)
            lines.append(b"%b%b\r\n" % (start, value))
    block = b"".join(lines)
    # The lines are counted too: a value with a line break could form two valid lines
    # (response splitting).
    if block.count(b"\r\n") != len(lines) or _HEADER_BLOCK.fullmatch(block) is None:
        raise RuntimeError("A response's header is malformed")
    framing: Framing
    # HEAD comes first: its response keeps the Content-Length of a GET, which must not
    # be enforced on the empty body.
    if method == "HEAD":
        framing = _HEAD_REQUEST
    elif status in (204, 304):
        framing = _NO_CONTENT
    elif length is not None:
        framing = ContentLengthFraming(length)
    elif version == "1.1":
        framing = _CHUNKED
        block += b"transfer-encoding: chunked\r\n"
    else:
        framing = _CLOSE_DELIMITED
        keeps_alive = False
    last_lines = b"\r\n" if keeps_alive else b"connection: close\r\n\r\n"
    return ResponseHead(
        b"".join((_STATUS_LINES[status], common_lines, block, last_lines)), framing, keeps_alive
    )


def build_plain_response(status: int, text: str, common_lines: bytes) -> bytes:
    """Serialize a complete text response of the server itself, after which the
    connection closes.
    """
    body = text.encode()
    fields = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    response_head = build_response_head(
        status, fields, common_lines, method="GET", version="1.1", keeps_alive=False
    )
    return response_head.head + body
