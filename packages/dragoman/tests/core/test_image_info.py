"""Formats and sizes of images from their first bytes."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.core.errors import RequestError
from dragoman.core.image_header import MAX_BYTES, ImageInfo, check_image, read_image_info
from dragoman.core.message import InlineMedia
from tests.pictures import PIXEL, build_png, png

# Written by Pillow, 31 pixels wide and 7 high; of the JPEGs only the bytes before the
# pixels.
BASELINE = "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP//////////////////////////////////////////////////////////////////////////////////////wAALCAAHAB8BAREA"  # noqa: E501
PROGRESSIVE = BASELINE.replace("/wAALCAAHAB8B", "/wgALCAAHAB8B")
GIF = "R0lGODdhHwAHAIEAAAAAAAAAAAAAAAAAACwAAAAAHwAHAAAIGgABCBxIsKDBgwgTKlzIsKHDhxAjSpxI8WBAADs="
LOSSY = "UklGRjAAAABXRUJQVlA4ICQAAACwAgCdASofAAcAP/3+/3+/uzayMAgD8D+JaQAAeyAA/ua1AAA="
LOSSLESS = "UklGRhoAAABXRUJQVlA4TA4AAAAvHoABAAcQEf0PRET/Aw=="
EXTENDED = "UklGRkwAAABXRUJQVlA4WAoAAAAIAAAAHgAABgAAVlA4ICQAAACwAgCdASofAAcAP/3+/3+/uzayMAgD8D+JaQAAeyAA/ua1AABFWElGAQAAAHgA"  # noqa: E501


@pytest.mark.parametrize(
    ("encoded", "kind"),
    [
        (BASELINE, "jpeg"),
        (PROGRESSIVE, "jpeg"),
        (GIF, "gif"),
        (LOSSY, "webp"),
        (LOSSLESS, "webp"),
        (EXTENDED, "webp"),
        (base64.b64encode(png(31, 7)).decode(), "png"),
    ],
)
def test_read_image_info_returns_type_and_size(encoded: str, kind: str):
    assert read_image_info(base64.b64decode(encoded)) == ImageInfo(f"image/{kind}", 31, 7)


@pytest.mark.parametrize("encoded", [BASELINE, GIF, LOSSY, LOSSLESS, EXTENDED])
@given(data=st.data())
def test_read_image_info_of_truncated_image_does_not_raise(encoded: str, data: st.DataObject):
    full = base64.b64decode(encoded)
    found = read_image_info(
        full[: data.draw(st.integers(0, len(full)))] + data.draw(st.binary(max_size=8))
    )
    assert found is None or found.media_type.startswith("image/")


@given(st.binary(max_size=64))
@example(b"")
@example(b"%PDF-1.7")
@example(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
@example(b"\xff\xd8\xff" * 20)
def test_read_image_info_of_non_image_returns_none(data: bytes):
    assert read_image_info(data) is None or data[:3] in (b"\xff\xd8\xff", b"GIF")


def test_read_image_info_jpeg_of_only_markers_returns_none():
    assert read_image_info(b"\xff\xd8" + b"\xff\xe0\0\2" * 500_000) is None


@pytest.mark.parametrize("filler", [b"\xff", b"\xff\xe0\0\2", b"\xff\x01"])
def test_read_image_info_jpeg_fillers_are_limited(filler: bytes):
    jpeg = base64.b64decode(BASELINE)
    size = ImageInfo("image/jpeg", 31, 7)
    assert read_image_info(jpeg[:2] + filler * 1000 + jpeg[2:]) == size
    endless = read_image_info(jpeg[:2] + filler * 100_000 + jpeg[2:])
    # Fill bytes are part of one marker; any other filler is a segment to read.
    assert endless == (size if filler == b"\xff" else None)


@pytest.mark.parametrize(
    "declared",
    [None, "image/png", "image/PNG", "application/octet-stream", "image/*", "image/x-png"],
)
def test_check_image_detects_missing_or_generic_type(declared: str | None):
    assert check_image(InlineMedia(PIXEL, declared), "x") == InlineMedia(PIXEL, "image/png")


@pytest.mark.parametrize(
    ("inline", "code"),
    [
        (InlineMedia(PIXEL, "image/webp"), "invalid_image_format"),
        (InlineMedia(PIXEL, "text/html"), "invalid_image_format"),
        (InlineMedia(b"GIF89a is no image", "image/png"), "invalid_image_format"),
        (InlineMedia(b"<svg/>", "image/svg+xml"), "invalid_image"),
        (InlineMedia(PIXEL + bytes(MAX_BYTES), "image/png"), "image_too_large"),
        (InlineMedia(build_png(8001, 8000, b""), "image/png"), "image_too_large"),
        (InlineMedia(build_png(2**31 - 1, 2**31 - 1, b""), None), "image_too_large"),
        (InlineMedia(build_png(0, 8, b""), None), "invalid_image"),
    ],
)
def test_check_image_rejection_names_field(inline: InlineMedia, code: str):
    with pytest.raises(RequestError) as error:
        check_image(inline, "messages[0].content[1].image_url.url")
    assert (error.value.param, error.value.code) == ("messages[0].content[1].image_url.url", code)
