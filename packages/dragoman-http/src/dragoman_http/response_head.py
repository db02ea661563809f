"""Parsing of response heads with llhttp in strict mode.

A response whose body two clients could delimit differently is rejected (response
splitting, RFC 9112, 6.3 and 11.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum

import httptools
from msgspec import Struct

from .errors import InvalidResponse

HEAD_END = b"\r\n\r\n"
_PREFIX = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-5][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*)?\r\n")
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r[^\n]|(?<!\r)\n|\n[\t ]")
"""Bytes that are invalid anywhere in a head, including bare CR, bare LF and folded
lines.
"""


# At most 18 digits, which fit into a signed integer of 64 bits.
_CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")


class BodyFraming(Enum):
    """The way in which the end of a body is determined (RFC 9112, 6.3). NONE: there is
    no body.
    """

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class ClientResponseHead(Struct, frozen=True):
    """A parsed response head.

    headers: by name in lower case; values of equal names are joined by commas.
    raw_headers: the same as pairs, in the order in which they were sent.
    keeps_alive: whether the connection can be used again after the body.
    """

    status: int
    headers: Mapping[str, str]
    raw_headers: Sequence[tuple[bytes, bytes]]
    framing: BodyFraming
    keeps_alive: bool


class ResponseCallbacks:
    """The callbacks of llhttp for one response; httptools defines the method names.

    pieces: pieces of the body; the caller removes them.
    headers: headers with lower-case names; trailers are dropped.
    is_complete: whether the response has ended.
    has_excess: whether more bytes follow the response.
    """

    __slots__ = ("_in_head", "_num_messages", "headers", "is_complete", "on_body", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self._in_head = True
        self._num_messages = 0

    @property
    def has_excess(self) -> bool:
        return self._num_messages > 1

    def on_message_begin(self) -> None:
        self._num_messages += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self.headers.append((name.lower(), value.strip(b"\t ")))

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_message_complete(self) -> None:
        self.is_complete = True


def check_partial_head(data: bytes) -> None:
    """Reject an incomplete head early if it cannot become valid. Raises
    InvalidResponse.
    """
    if data[: len(_PREFIX)] != _PREFIX[: len(data)]:
        raise InvalidResponse("the server does not speak HTTP/1.1")


def parse_response_head(
    data: bytes, *, has_body: bool = True
) -> tuple[ClientResponseHead, httptools.HttpResponseParser, ResponseCallbacks]:
    """Parse a complete head, up to and including `HEAD_END`. Returns it with the
    parser, which continues with the body.

    has_body: whether the response can have a body; that to HEAD cannot.

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
        key = name.decode("ascii", "replace")
        text = value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    status = parser.get_status_code()
    version = parser.get_http_version()
    # llhttp rejects most invalid combinations, but the framing must not depend on its
    # version.
    codings = [value.lower() for name, value in callbacks.headers if name == b"transfer-encoding"]
    lengths = [value for name, value in callbacks.headers if name == b"content-length"]
    if status < 200 or status in (204, 304) or not has_body:
        # No body, whatever the headers say (RFC 9112, 6.3).
        framing = BodyFraming.NONE
    elif codings:
        if lengths or version != "1.1" or codings != [b"chunked"]:
            raise InvalidResponse(
                "the response has an invalid Transfer-Encoding, or one with a Content-Length"
            )
        framing = BodyFraming.CHUNKED
    elif lengths:
        if len(lengths) > 1 or _CONTENT_LENGTH.fullmatch(lengths[0]) is None:
            raise InvalidResponse("the response has an invalid Content-Length, or several")
        framing = BodyFraming.LENGTH
    else:
        framing = BodyFraming.CLOSE
    options = [option.strip().lower() for option in headers.get("connection", "").split(",")]
    keeps_alive = version == "1.1" and "close" not in options and framing is not BodyFraming.CLOSE
    if framing is BodyFraming.NONE and ({"content-length", "transfer-encoding"} & headers.keys()):
        # If the server sends a body nevertheless, it would be taken for the next
        # response.
        keeps_alive = False
    head = ClientResponseHead(status, headers, callbacks.headers, framing, keeps_alive)
    return head, parser, callbacks
