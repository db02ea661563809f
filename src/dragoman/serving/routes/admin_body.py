"""What the administrators' routes have in common: bodies that may be missing, and what is in them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ...core.errors import RequestError
from ...dialects.body import check_text, translated
from ..endpoint import HttpRequest

T = TypeVar("T")

MAX_VERSION_LENGTH = 256
"""Characters of the name of weights."""


async def decode_body(http: HttpRequest, body_type: type[T]) -> T:
    """A JSON body; none at all is an empty object. Raises RequestError."""
    data = await http.read_json() or b"{}"
    try:
        check_text(data)
        return msgspec.json.decode(data, type=body_type)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise translated(error, data) from None


def check_version(text: str | None, param: str = "weight_version") -> str | None:
    """Raises RequestError for one that cannot be a name."""
    if text is not None and not 0 < len(text) <= MAX_VERSION_LENGTH:
        raise RequestError(f"`{param}` has 1 to {MAX_VERSION_LENGTH} characters.", param=param)
    return text
