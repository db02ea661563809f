"""Encodes strings and numbers as JSON that is safe in server-sent events."""

from __future__ import annotations

import math

import msgspec

UNKNOWN_LOGPROB = -9999.0
"""OpenAI's value for a logprob that is unknown or that JSON cannot represent."""

_encode = msgspec.json.Encoder().encode


def encode_string(text: str) -> bytes:
    """Encode a text as a JSON string."""
    try:
        data = _encode(text)
    except UnicodeEncodeError:
        data = _encode(replace_surrogates(text))
    return data if data.isascii() else escape_line_breaks(data)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by question marks."""
    return text.encode("utf-8", "replace").decode()


def escape_line_breaks(data: bytes) -> bytes:
    """Escape the three non-ASCII characters in JSON that some clients treat as line
    breaks.

    `str.splitlines`, which the line readers of several HTTP clients use, splits at
    U+0085, U+2028 and U+2029.
    """
    if data.isascii():
        return data
    data = data.replace(b"\xc2\x85", b"\\u0085")
    return data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def encode_field(name: str, text: str | None) -> bytes:
    """Encode an additional field after a comma.

    text: the value as JSON text; None returns nothing.
    """
    if text is None:
        return b""
    return b',"%s":%s' % (
        name.encode(),
        escape_line_breaks(msgspec.json.format(text, indent=-1).encode()),
    )


def encode_string_or_null(text: str | None) -> bytes:
    return b"null" if text is None else encode_string(text)


def encode_int(value: int | None) -> bytes:
    return b"null" if value is None else b"%d" % value


def clamp_logprob(value: float | None) -> float:
    """Replace a logprob that is unknown or that JSON cannot represent by
    UNKNOWN_LOGPROB.
    """
    return value if value is not None and math.isfinite(value) else UNKNOWN_LOGPROB
