"""Reads the format and size of an image from its header, without decoding pixels."""

from __future__ import annotations

import re

from msgspec import Struct

from .errors import RequestError
from .message import InlineMedia

MAX_BYTES = 20 * 1024 * 1024
"""Maximum bytes of one image."""


MAX_PIXELS = 64_000_000
"""Maximum pixels of one image: 8000 x 8000, Anthropic's limit."""


_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


# Unregistered names that clients send for a registered type. APNG has the signature of
# PNG.
_MEDIA_TYPE_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/apng": "image/png",
}


_UNSPECIFIC_TYPES = frozenset({"", "image/*", "application/octet-stream", "binary/octet-stream"})


_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's start-of-frame markers, whose segments contain the size (SOF0 to SOF15 without
DHT, JPG and DAC).
"""


_STANDALONE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length field."""


_FILL_BYTES = re.compile(rb"\xff+")
"""JPEG's fill bytes, any number of which may precede a marker (ITU-T T.81, B.1.1.2),
with the marker's own 0xFF.
"""


_MAX_SEGMENTS = 4096
"""Maximum segments before JPEG's frame header: 20 MB of the longest segments are 320.
"""


class ImageInfo(Struct, frozen=True):
    """The header of an image.

    media_type: MIME type.
    width, height: pixels of the canvas.
    """

    media_type: str
    width: int
    height: int


def read_image_info(data: bytes) -> ImageInfo | None:
    """Parse the header of an image; None if it is not PNG, JPEG, GIF or WebP, or ends
    before the size.
    """
    # The first chunk of a PNG must be IHDR (PNG specification, section 5.6).
    if data.startswith(_PNG_SIGNATURE) and data[12:16] == b"IHDR":
        info = ImageInfo("image/png", _read_big_endian(data, 16, 4), _read_big_endian(data, 20, 4))
    elif data.startswith((b"GIF87a", b"GIF89a")):
        info = ImageInfo(
            "image/gif", _read_little_endian(data, 6, 2), _read_little_endian(data, 8, 2)
        )
    elif data.startswith(b"\xff\xd8\xff"):
        info = _read_jpeg(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        info = _read_webp(data)
    else:
        info = None
    return info if info is not None and info.width and info.height else None


def check_image(inline: InlineMedia, param: str) -> InlineMedia:
    """Check an image and return it with its detected media type.

    param: path of the field that contains it.

    Raises:
        RequestError: not an image, not of the declared type, or too large.
    """
    if len(inline.data) > MAX_BYTES:
        raise RequestError(
            f"The image in '{param}' has {len(inline.data)} bytes; the maximum is {MAX_BYTES}.",
            param=param,
            code="image_too_large",
        )
    info = read_image_info(inline.data)
    if info is None:
        raise RequestError(
            f"'{param}' is not a readable image; supported formats are PNG, JPEG, GIF and WebP.",
            param=param,
            code="invalid_image",
        )
    # The names of media types are not case-sensitive (RFC 2045, section 5.1).
    declared_type = (inline.media_type or "").lower()
    if (
        declared_type not in _UNSPECIFIC_TYPES
        and _MEDIA_TYPE_ALIASES.get(declared_type, declared_type) != info.media_type
    ):
        raise RequestError(
            f"The image in '{param}' is declared as {declared_type[:64]!r}, but it is "
            f"{info.media_type!r}.",
            param=param,
            code="invalid_image_format",
        )
    # The header is checked before anything is decoded: a small file may declare
    # gigabytes of pixels.
    if info.width * info.height > MAX_PIXELS:
        raise RequestError(
            f"The image in '{param}' has {info.width} x {info.height} pixels; the maximum is "
            f"{MAX_PIXELS}.",
            param=param,
            code="image_too_large",
        )
    return InlineMedia(inline.data, info.media_type)


def _read_big_endian(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "big")


def _read_little_endian(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def _read_jpeg(data: bytes) -> ImageInfo | None:
    """Find the first frame's header, skipping the segments before it."""
    offset = 2
    # Bounded, since megabytes of empty segments would occupy a CPU core for seconds.
    for _ in range(_MAX_SEGMENTS):
        fill = _FILL_BYTES.match(data, offset)
        if fill is None or fill.end() + 3 > len(data):
            return None
        offset = fill.end() - 1
        marker = data[offset + 1]
        if marker in _STANDALONE_MARKERS:
            offset += 2
        elif marker in _FRAME_MARKERS:
            return ImageInfo(
                "image/jpeg",
                _read_big_endian(data, offset + 7, 2),
                _read_big_endian(data, offset + 5, 2),
            )
        else:
            # A length includes its own two bytes, so a smaller one is invalid; it is
            # read as 2.
            offset += 2 + max(_read_big_endian(data, offset + 2, 2), 2)
    return None


def _read_webp(data: bytes) -> ImageInfo | None:
    """Read the canvas size of an extended file, otherwise the size in the only frame's
    header (RFC 9649).
    """
    if len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            # Stored minus one, in 24 bits each.
            return ImageInfo(
                "image/webp",
                _read_little_endian(data, 24, 3) + 1,
                _read_little_endian(data, 27, 3) + 1,
            )
        case b"VP8L":
            # 14 bits each, minus one, after the signature byte 0x2F.
            bits = _read_little_endian(data, 21, 4)
            return ImageInfo("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8 ":
            # 14 bits each; the upper two are a hint for scaling (RFC 6386, section
            # 9.1).
            return ImageInfo(
                "image/webp",
                _read_little_endian(data, 26, 2) & 0x3FFF,
                _read_little_endian(data, 28, 2) & 0x3FFF,
            )
        case _:
            return None
