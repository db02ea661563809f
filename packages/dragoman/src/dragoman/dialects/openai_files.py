"""OpenAI's files: the object, the fields of an upload.

The object follows the openai SDK 3.x (types/file_object.py).
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from .field_errors import abbreviate, check_one_of, invalid_value, missing_parameter, parse_digits


class FileObject(Struct, frozen=True, kw_only=True):
    """A file.

    bytes: size in bytes.
    created_at, expires_at: Unix seconds.
    mime_type: only for files uploaded through Anthropic's API, which returns it.
    """

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    object: str = "file"
    status: str = "processed"
    status_details: str | None = None
    mime_type: str | UnsetType = UNSET


class DeletedObject(Struct, frozen=True):
    id: str
    object: str
    deleted: bool = True


def render_deleted(id: str, object: str) -> bytes:
    return msgspec.json.encode(DeletedObject(id, object))


PURPOSES = ("batch", "user_data", "assistants", "vision", "fine-tune", "evals")


_MIN_EXPIRY_SECONDS = 3600


_MAX_EXPIRY_SECONDS = 2592000
"""One hour, and 30 days."""


def read_purpose(purpose: str | None) -> str:
    """Parse a file's purpose. Raises RequestError."""
    if purpose is None:
        raise missing_parameter("purpose")
    return check_one_of(purpose, PURPOSES, "purpose")


def read_expiry_seconds(text: str, param: str = "expires_after") -> int:
    """Parse the seconds until expiry, from one hour to 30 days. Raises RequestError."""
    seconds = parse_digits(text, 12)
    if seconds is None or not _MIN_EXPIRY_SECONDS <= seconds <= _MAX_EXPIRY_SECONDS:
        raise invalid_value(
            f"{param}.seconds",
            f"expected from {_MIN_EXPIRY_SECONDS} to {_MAX_EXPIRY_SECONDS}, got {abbreviate(text)}",
        )
    return seconds
