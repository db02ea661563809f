"""Parsing of request heads with llhttp in strict mode. Does no I/O.

Rejects every head that two servers could interpret differently (request smuggling, RFC
9112, 11.2): a body has one length, given once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import httptools
from msgspec import Struct

from .bad_request import BadRequest
from .body_readers import BodyReader, ChunkedReader, ContentLengthReader

HEAD_END = b"\r\n\r\n"

_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r[^\n]|(?<!\r)\n|\n[\t ]")
"""Bytes that are invalid anywhere in a head."""
_REQUEST_LINE = re.compile(rb"([^ \r\n]+) [^ \r\n]+ HTTP/([0-9]\.[0-9])\r\n")
"""RFC 9112, 3: single spaces and the protocol name HTTP only; llhttp also accepts RTSP
and ICE.
"""
_VERSIONS = {b"1.0": "1.0", b"1.1": "1.1"}
# Scheme and authority of a request target in absolute form (RFC 9112, 3.2.2).
_AUTHORITY = re.compile(rb"(https?)://([^/?#]*)", re.IGNORECASE)
_DEFAULT_PORT = {b"http": b":80", b"https": b":443"}
_LENGTH_DIGITS = 18
"""As many fit into a signed integer of 64 bits."""
_COMMON_NAMES = (
    b"accept", b"accept-encoding", b"accept-language", b"authorization", b"baggage",
    b"cache-control", b"connection",
    b"content-length", b"content-type", b"cookie", b"expect", b"host", b"openai-organization",
    b"openai-project",
    b"origin", b"referer", b"traceparent", b"tracestate", b"transfer-encoding", b"upgrade",
    b"user-agent",
    b"anthropic-beta", b"anthropic-version", b"x-api-key", b"x-forwarded-for",
    b"x-forwarded-proto", b"x-request-id",
    b"x-stainless-arch", b"x-stainless-async", b"x-stainless-lang", b"x-stainless-os",
    b"x-stainless-package-version",
    b"x-stainless-read-timeout", b"x-stainless-retry-count", b"x-stainless-runtime",
    b"x-stainless-runtime-version", b"x-stainless-timeout",
)  # fmt: skip
_INTERNED_NAMES: Mapping[bytes, bytes] = {name: name for name in _COMMON_NAMES}
"""Common header names, interned to save memory."""
_CONTROL_HEADERS = frozenset(
    {b"connection", b"content-length", b"expect", b"transfer-encoding", b"upgrade"}
)
"""Headers that control the connection."""


class RequestHead(Struct, frozen=True):
    """A parsed request head.

    version: "1.0" or "1.1".
    path: undecoded, without the query.
    headers: names in lower case.
    body: None if the request has no body.
    keeps_alive: whether the client allows another request on the connection.
    expects_continue: whether the client waits for `100 Continue`.
    upgrade: the protocol of the Upgrade header, in lower case.
    """

    method: str
    version: str
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: BodyReader | None
    keeps_alive: bool
    expects_continue: bool
    upgrade: bytes | None

    def encode(self) -> bytes:
        """Serialize the head as on the wire, but with lower-case header names."""
        target = self.path + (b"?" + self.query if self.query else b"")
        lines = [b"%b: %b\r\n" % pair for pair in self.headers]
        request_line = f"{self.method} ".encode(), target, f" HTTP/{self.version}\r\n".encode()
        return b"".join((*request_line, *lines, b"\r\n"))


class _HeadCallbacks:
    """The callbacks of the parser; httptools defines the method names."""

    __slots__ = ("headers", "is_complete", "url")

    def __init__(self) -> None:
        self.url = b""
        self.is_complete = False
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        # llhttp leaves trailing white space, which is not part of a field value (RFC
        # 9110, 5.5).
        self.headers.append((_INTERNED_NAMES.get(name, name), value.rstrip(b"\t ")))

    def on_headers_complete(self) -> None:
        self.is_complete = True


def parse_head(data: bytes) -> RequestHead:
    """Parse a complete head, up to and including `HEAD_END`.

    Raises:
        BadRequest: the head is malformed or unsupported.
    """
    callbacks = _HeadCallbacks()
    parser = _run_parser(data, callbacks)
    if not callbacks.is_complete:
        raise _build_malformed_error()
    line = _REQUEST_LINE.match(data)
    version = _VERSIONS.get(parser.get_http_version().encode() if line is None else line[2])
    if version is None:
        raise BadRequest(505, "This server supports HTTP/1.1.")
    if line is None:
        raise _build_malformed_error("Invalid request line")
    # Interned: it is held for as long as the response streams.
    method = sys.intern(line[1].decode("ascii"))
    if method == "CONNECT":
        raise BadRequest(405, "This server is not a proxy.")
    try:
        parsed = httptools.parse_url(callbacks.url)
    except httptools.HttpParserError as error:
        raise _build_malformed_error("Invalid request target") from error
    path = parsed.path or b"/"
    query = parsed.query or b""
    # The absolute form of the target, as clients send it to a proxy, overrides Host and
    # must agree with it (RFC 9112, 3.2.2).
    absolute = None if callbacks.url.startswith(b"/") else _AUTHORITY.match(callbacks.url)
    if absolute is not None:
        port = _DEFAULT_PORT[absolute[1].lower()]
        authority = absolute[2].lower().removesuffix(port)
        hosts = [
            value.lower().removesuffix(port) for name, value in callbacks.headers if name == b"host"
        ]
        if any(host != authority for host in hosts):
            raise BadRequest(400, "The request target names another host than the Host header.")
    headers = callbacks.headers
    control_headers: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name in _CONTROL_HEADERS:
            control_headers.setdefault(name, []).append(value)
    connection_options = (
        [
            option.strip().lower()
            for value in control_headers[b"connection"]
            for option in value.split(b",")
        ]
        if b"connection" in control_headers
        else []
    )
    return RequestHead(
        method,
        version,
        path,
        query,
        headers,
        _build_body_reader(control_headers, version),
        version == "1.1" and b"close" not in connection_options,
        version == "1.1"
        and b"expect" in control_headers
        and any(
            expectation.lower() == b"100-continue" for expectation in control_headers[b"expect"]
        ),
        # RFC 9110, 7.8: ignored in HTTP/1.0.
        control_headers[b"upgrade"][0].lower()
        if version == "1.1" and b"upgrade" in control_headers and b"upgrade" in connection_options
        else None,
    )


def check_partial_head(data: bytes, checked_bytes: int) -> None:
    """Reject an incomplete head early if it cannot become valid.

    checked_bytes: bytes that an earlier call has checked.

    Raises:
        BadRequest: the head is malformed.
    """
    # The search starts one byte earlier: a match of two bytes may begin with the last
    # checked byte.
    if _FORBIDDEN.search(data, max(0, checked_bytes - 1)) is not None:
        # llhttp's error message is more precise than the pattern.
        _run_parser(data, _HeadCallbacks())
        raise _build_malformed_error()


def _run_parser(data: bytes, callbacks: _HeadCallbacks) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(callbacks)
    try:
        parser.feed_data(data)
    # Raised for every request with `Upgrade`, even if this server ignores the header.
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise _build_malformed_error(str(error)) from error
    return parser


def _build_malformed_error(reason: str = "") -> BadRequest:
    """Build the error of a malformed request.

    reason: llhttp's error message, or "".
    """
    return BadRequest(
        400, f"The request is not well-formed HTTP/1.1{': ' if reason else ''}{reason}."
    )


def _build_body_reader(
    control_headers: Mapping[bytes, list[bytes]], version: str
) -> BodyReader | None:
    """Choose the body reader. llhttp rejects most invalid combinations, but framing
    must not depend on its version.
    """
    codings = control_headers.get(b"transfer-encoding")
    lengths = control_headers.get(b"content-length")
    if codings is not None:
        # Each of these has been used to smuggle requests past proxies that read them
        # otherwise (RFC 9112, 11.2).
        if lengths or len(codings) > 1 or version == "1.0":
            raise _build_malformed_error(
                "Transfer-Encoding more than once, with Content-Length or in HTTP/1.0"
            )
        if codings[0].lower() != b"chunked":
            raise BadRequest(
                501, "The only transfer coding that this server supports is `chunked`."
            )
        return ChunkedReader()
    if lengths is None:
        return None
    value = lengths[0]
    # `isdigit` knows only ASCII in bytes.
    if len(lengths) > 1 or not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise _build_malformed_error("Invalid Content-Length")
    length = int(value)
    return ContentLengthReader(length) if length else None
