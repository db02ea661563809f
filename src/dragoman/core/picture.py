"""What the first bytes of an image say: its format and how large it is. Decodes no pixels.

The four formats are those that OpenAI's and Anthropic's APIs take. What is said here is compared with what a client
says, and bounds what an engine has to decode: 100 kB of PNG can be gigabytes of pixels (CVE-2026-22773).
"""

from __future__ import annotations

from msgspec import Struct

from .errors import RequestError
from .message import Inline

MAX_BYTES = 20 * 1024 * 1024
"""Of one image."""
MAX_PIXELS = 64_000_000
"""Of one image: 8000 x 8000, Anthropic's bound."""

_PNG = b"\x89PNG\r\n\x1a\n"
_TYPES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png", "image/apng": "image/png"}
_ANY = frozenset({"", "image/*", "application/octet-stream", "binary/octet-stream"})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's markers of a frame, which tell its size."""
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG's markers without a length."""


class Picture(Struct, frozen=True):
    """media_type: as in MIME. width, height: pixels, of the first frame."""

    media_type: str
    width: int
    height: int


def picture_of(data: bytes) -> Picture | None:
    """None for what is no PNG, JPEG, GIF or WebP, or ends before it tells its size."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR":
        found = Picture("image/png", _big(data, 16, 4), _big(data, 20, 4))
    elif data.startswith((b"GIF87a", b"GIF89a")):
        found = Picture("image/gif", _little(data, 6, 2), _little(data, 8, 2))
    elif data.startswith(b"\xff\xd8\xff"):
        found = _jpeg(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        found = _webp(data)
    else:
        found = None
    return found if found is not None and found.width and found.height else None


def checked_image(inline: Inline, param: str) -> Inline:
    """With the media type that it has. param: the field that it came in.

    Raises RequestError for what is no image, is none of the type that it was said to be, or is too large.
    """
    if len(inline.data) > MAX_BYTES:
        raise RequestError(
            f"The image in '{param}' has {len(inline.data)} bytes; the maximum is {MAX_BYTES}.",
            param=param,
            code="image_too_large",
        )
    picture = picture_of(inline.data)
    if picture is None:
        raise RequestError(
            f"'{param}' is not a readable image; supported formats are PNG, JPEG, GIF and WebP.",
            param=param,
            code="invalid_image",
        )
    said = (inline.media_type or "").lower()
    if said not in _ANY and _TYPES.get(said, said) != picture.media_type:
        raise RequestError(
            f"The image in '{param}' is said to be {said[:64]!r}, but it is {picture.media_type!r}.",
            param=param,
            code="invalid_image_format",
        )
    if picture.width * picture.height > MAX_PIXELS:
        raise RequestError(
            f"The image in '{param}' has {picture.width} x {picture.height} pixels; the maximum is {MAX_PIXELS}.",
            param=param,
            code="image_too_large",
        )
    return Inline(inline.data, picture.media_type)


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _jpeg(data: bytes) -> Picture | None:
    """The first frame's header; what stands before it is skipped, segment by segment."""
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _FRAMES:
            return Picture("image/jpeg", _big(data, at + 7, 2), _big(data, at + 5, 2))
        else:
            at += 2 + max(_big(data, at + 2, 2), 2)
    return None


def _webp(data: bytes) -> Picture | None:
    """The canvas of an extended file, else the one frame's header (RFC 9649)."""
    if len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            return Picture("image/webp", _little(data, 24, 3) + 1, _little(data, 27, 3) + 1)
        case b"VP8L":
            bits = _little(data, 21, 4)
            return Picture("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8 ":
            return Picture("image/webp", _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF)
        case _:
            return None
