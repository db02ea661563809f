"""Generate images for tests: the smallest PNG, and PNGs of any size and color without a
library.
"""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int = 1, height: int = 1, rgb: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    """Return a PNG of one color."""
    rows = (b"\0" + bytes(rgb) * width) * height
    return build_png(width, height, rows)


def build_png(width: int, height: int, rows: bytes) -> bytes:
    """Return a PNG.

    rows: each a filter byte and RGB values; they need not match the size in the header.
    """
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


PIXEL = png()
PIXEL_URL = data_url(PIXEL)
