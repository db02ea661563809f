"""Parsing of admin request bodies."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..core.errors import RequestError
from ..dialects.body import check_text, translated
from .endpoint import HttpRequest

T = TypeVar("T")

MAX_VERSION_LENGTH = 256
"""Maximum characters of a weight version."""


async def decode_body(http: HttpRequest, body_type: type[T]) -> T:
    """Decode a JSON body; an empty one counts as `{}`.

    Raises:
        RequestError: the body is invalid.
    """
    data = await http.read_json() or b"{}"
    try:
        check_text(data)
        return msgspec.json.decode(data, type=body_type)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise translated(error, data) from None


def check_version(text: str | None, param: str = "weight_version") -> str | None:
    """Raises RequestError: the version is empty or too long."""
    if text is not None and not 0 < len(text) <= MAX_VERSION_LENGTH:
        raise RequestError(f"`{param}` has 1 to {MAX_VERSION_LENGTH} characters.", param=param)
    return text
