"""Validation of WebSocket handshakes (RFC 6455, 4.2.1)."""

from __future__ import annotations

import re

from .bad_request import BadRequest
from .request_head import RequestHead

# Sec-WebSocket-Key: 16 bytes in base64 (RFC 6455, 4.1).
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")


def check_websocket(head: RequestHead) -> None:
    """Validate a WebSocket handshake (RFC 6455, 4.2.1), since uvicorn does not respond
    to some invalid ones.

    Headers that describe a body are rejected, even for an empty body.

    Raises:
        BadRequest: the handshake is invalid.
    """
    fields = dict(head.headers)
    if head.method != "GET":
        raise BadRequest(400, "A WebSocket handshake must be a GET request.")
    if b"content-length" in fields or b"transfer-encoding" in fields:
        raise BadRequest(400, "A WebSocket handshake must not have a body.")
    if fields.get(b"sec-websocket-version") != b"13":
        lines = b"sec-websocket-version: 13\r\nupgrade: websocket\r\n"
        raise BadRequest(
            426, "This server supports only version 13 of the WebSocket protocol.", lines
        )
    if _KEY.fullmatch(fields.get(b"sec-websocket-key", b"")) is None:
        raise BadRequest(
            400, "A WebSocket handshake needs a Sec-WebSocket-Key of 16 bytes in base64."
        )
