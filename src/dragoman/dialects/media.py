"""Where a request's media is: in a data URL, behind http(s), or uploaded before. Fetches nothing."""

from __future__ import annotations

import base64
import binascii

from ..core.errors import RequestError
from ..core.message import Inline, Remote, Source
from ..core.picture import checked_image
from .body import invalid


def read_url(url: str, param: str) -> Source:
    """A data URL is decoded; http and https stay URLs; anything else, `file:` above all, is refused."""
    scheme = url[:8].partition(":")[0].lower()
    if scheme == "data":
        return _data_url(url, param)
    if scheme in ("http", "https"):
        return Remote(url)
    raise invalid(param, "expected a URL that begins with https:, http: or data:")


def read_image_url(url: str, param: str) -> Source:
    """The same for an image: one that came along is looked at, as far as its first bytes tell what it is."""
    source = read_url(url, param)
    return checked_image(source, param) if isinstance(source, Inline) else source


def read_base64(text: str, media_type: str | None, param: str) -> Inline:
    """Base64, or a data URL that holds some."""
    if text[:5].lower() == "data:":
        return _data_url(text, param)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _not_base64(param) from None
    if not data:
        raise invalid(param, "it must not be empty")
    return Inline(data, media_type)


def _data_url(url: str, param: str) -> Inline:
    head, comma, payload = url[len("data:") :].partition(",")
    media_type, *parameters = head.split(";")
    if not comma or not parameters or parameters[-1].strip().lower() != "base64":
        raise invalid(param, "expected a data URL of the form data:<type>;base64,<data>")
    if payload[:5].lower() == "data:":
        raise _not_base64(param)
    return read_base64(payload, media_type.strip().lower() or None, param)


def _not_base64(param: str) -> RequestError:
    return invalid(param, "expected valid base64")
