"""Parsing of admin request bodies, and of the paths in them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from ..core.errors import PermissionDenied, RequestError
from ..dialects.body import check_text, translate_error
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
        raise translate_error(error, data) from None


def check_version(text: str | None, param: str = "weight_version") -> str | None:
    """Raises RequestError: the version is empty or too long."""
    if text is not None and not 0 < len(text) <= MAX_VERSION_LENGTH:
        raise RequestError(f"`{param}` has 1 to {MAX_VERSION_LENGTH} characters.", param=param)
    return text


def resolve_path_below(root: str | None, path: str, flag: str, param: str) -> Path:
    """The absolute path of a file or directory that an administrator names, below the operator's directory.

    root: that directory; None permits none.
    flag: its option.

    Raises:
        PermissionDenied: the path is not below the directory, or there is none.
        RequestError: the path does not exist.
    """
    if root is None:
        raise PermissionDenied(f"Nothing is loaded from disk at run time: {flag} is not set.", param=param)
    if "\0" in path:
        raise RequestError("A path cannot contain NUL.", param=param)
    # Resolved first, so that neither `..` nor a link leads out of the directory.
    location = (Path(root) / path).resolve()
    if not location.is_relative_to(Path(root).resolve()):
        raise PermissionDenied(f"This path is not under {flag}.", param=param)
    if not location.exists():
        raise RequestError("This path does not exist.", param=param, code="not_found")
    return location
