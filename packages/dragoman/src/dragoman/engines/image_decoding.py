"""Decodes images with Pillow, for engines whose models' image processors take Pillow
images.

Pillow is imported when it is used: the libraries of these engines install it.
"""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from typing import Any, TypeAlias

from ..core.errors import RequestError
from ..core.image_header import MAX_PIXELS

PillowImage: TypeAlias = Any
"""A `PIL.Image.Image`."""

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


def decode_image(data: bytes) -> PillowImage:
    """Decode the first frame to RGB, with EXIF rotation applied and transparency on
    white. Raises Pillow's errors, ValueError.
    """
    pillow = import_module("PIL.Image")
    operations = import_module("PIL.ImageOps")
    with pillow.open(BytesIO(data), formats=_FORMATS) as opened:
        # The decoder's size may differ from the header that was checked before.
        if opened.width * opened.height > MAX_PIXELS:
            raise ValueError(f"it has more than {MAX_PIXELS} pixels")
        upright = operations.exif_transpose(opened)
        if not upright.has_transparency_data:
            return upright.convert("RGB")
        layer = upright.convert("RGBA")
        white = pillow.new("RGBA", layer.size, "white")
        return pillow.alpha_composite(white, layer).convert("RGB")


def build_image_error(number: int, error: Exception) -> RequestError:
    """Build the error of an image that Pillow or a model's processor could not read.
    number: counted from 1.
    """
    return RequestError(
        f"Image {number} of the messages cannot be decoded: {error}",
        param="messages",
        code="image_parse_error",
    )
