"""Parses media in a body: data URLs, Base64, http(s) URLs, which are not fetched here."""

from __future__ import annotations

import base64
import binascii

from ..core.errors import RequestError
from ..core.image_header import check_image
from ..core.message import InlineMedia, MediaSource, RemoteMedia
from .field_errors import invalid_value


def read_url(url: str, param: str) -> MediaSource:
    """Parse a media URL: decode data URLs, keep http and https, and reject all others,
    such as `file:`.
    """
    scheme = url[:8].partition(":")[0].lower()
    if scheme == "data":
        return _read_data_url(url, param)
    if scheme in ("http", "https"):
        return RemoteMedia(url)
    raise invalid_value(param, "expected a URL that begins with https:, http: or data:")


def read_image_url(url: str, param: str) -> MediaSource:
    """Parse the URL of an image as `read_url` does, and check the header of an inline
    image.
    """
    source = read_url(url, param)
    return check_image(source, param) if isinstance(source, InlineMedia) else source


def read_base64(text: str, media_type: str | None, param: str) -> InlineMedia:
    """Decode Base64, or a data URL that contains it."""
    if text[:5].lower() == "data:":
        return _read_data_url(text, param)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _base64_error(param) from None
    if not data:
        raise invalid_value(param, "it must not be empty")
    return InlineMedia(data, media_type)


def _read_data_url(url: str, param: str) -> InlineMedia:
    head, comma, payload = url[len("data:") :].partition(",")
    media_type, *parameters = head.split(";")
    if not comma or not parameters or parameters[-1].strip().lower() != "base64":
        raise invalid_value(param, "expected a data URL of the form data:<type>;base64,<data>")
    if payload[:5].lower() == "data:":
        raise _base64_error(param)
    return read_base64(payload, media_type.strip().lower() or None, param)


def _base64_error(param: str) -> RequestError:
    return invalid_value(param, "expected valid base64")
