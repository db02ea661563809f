"""Encodes in canonical CBOR (RFC 8949, 4.2) what block hashes cover."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

_MAJOR_UNSIGNED = 0
_MAJOR_NEGATIVE = 1
_MAJOR_BYTES = 2
_MAJOR_TEXT = 3
_MAJOR_ARRAY = 4
_NULL = b"\xf6"


def encode_cbor(value: object) -> bytes:
    """Encode None, an integer of at most 64 bits, text, bytes, or a tuple of such values.

    Raises:
        TypeError: the value is of another type.
    """
    parts: list[bytes] = []
    _append(value, parts)
    return b"".join(parts)


def _append(value: object, parts: list[bytes]) -> None:
    if isinstance(value, int):
        parts.append(
            _encode_head(_MAJOR_UNSIGNED, value)
            if value >= 0
            else _encode_head(_MAJOR_NEGATIVE, -1 - value)
        )
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        parts.append(_encode_head(_MAJOR_ARRAY, len(items)))
        for item in items:
            _append(item, parts)
    elif isinstance(value, bytes):
        parts += _encode_head(_MAJOR_BYTES, len(value)), value
    elif isinstance(value, str):
        # JSON strings may contain unpaired surrogates.
        encoded = value.encode("utf-8", "surrogatepass")
        parts += _encode_head(_MAJOR_TEXT, len(encoded)), encoded
    elif value is None:
        parts.append(_NULL)
    else:
        raise TypeError(f"{type(value).__name__} has no encoding here")


# A vocabulary has about this many tokens, whose numbers are nearly all of a hash's input.
@lru_cache(maxsize=1 << 17)
def _encode_head(major: int, argument: int) -> bytes:
    """Encode an item's type with a number, in the fewest bytes."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    for code, size in ((24, 1), (25, 2), (26, 4)):
        if argument < 1 << 8 * size:
            return bytes((major << 5 | code,)) + argument.to_bytes(size, "big")
    return bytes((major << 5 | 27,)) + argument.to_bytes(8, "big")
