"""Anthropic's files: metadata, the fields of an upload, lists.

They follow the anthropic SDK 2.x, types/file_metadata.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from ..field_errors import abbreviate, invalid_value, parse_digits
from .pagination import CursorQuery, read_cursor_query

_MIN_EXPIRY_SECONDS = 3600


_MAX_EXPIRY_SECONDS = 7776000
"""One hour, and 90 days."""


_MAX_IDS = 100


_CURSOR_PREFIX = "page_"


class FileMetadata(Struct, frozen=True, kw_only=True):
    """The metadata of a file. Times are RFC 3339."""

    id: str
    type: str = "file"
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None = None
    downloadable: bool = True


class FilePage(Struct, frozen=True):
    data: list[Raw]
    has_more: bool
    first_id: str | None
    last_id: str | None
    next_page: str | None


def read_expiry_seconds(text: str | None) -> int | None:
    """Parse `expires_in_seconds`, which is from one hour to 90 days. Raises
    RequestError.
    """
    if text is None:
        return None
    seconds = parse_digits(text, 12)
    if seconds is None or not _MIN_EXPIRY_SECONDS <= seconds <= _MAX_EXPIRY_SECONDS:
        raise invalid_value(
            "expires_in_seconds",
            f"expected from {_MIN_EXPIRY_SECONDS} to {_MAX_EXPIRY_SECONDS}, got {abbreviate(text)}",
        )
    return seconds


def read_file_page_query(query: Mapping[str, str]) -> CursorQuery:
    """Parse the query of a list of files. Raises RequestError.

    Current SDKs send a cursor (`page`), older ones ids (`after_id`, `before_id`).
    """
    page = query.get("page")
    after = query.get("after_id")
    if page is not None:
        if after or query.get("before_id"):
            raise invalid_value("page", "it cannot be combined with `after_id` and `before_id`")
        # The cursor is the id of the last row with a prefix, so no cursors have to be
        # stored.
        after = page.removeprefix(_CURSOR_PREFIX)
    return read_cursor_query(query.get("limit"), after, query.get("before_id"))


def select_ids(ids: Sequence[str], query: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids to list, without duplicates. Raises RequestError."""
    selected = tuple(dict.fromkeys(ids))
    if len(selected) > _MAX_IDS:
        raise invalid_value("ids", f"expected at most {_MAX_IDS}, got {len(selected)}")
    if selected and ("page" in query or "limit" in query):
        raise invalid_value("ids", "it cannot be combined with `page` and `limit`")
    return selected


def render_file_list(rows: Sequence[FileMetadata], *, has_more: bool) -> bytes:
    first, last = (rows[0].id, rows[-1].id) if rows else (None, None)
    data = [Raw(msgspec.json.encode(row)) for row in rows]
    return msgspec.json.encode(
        FilePage(data, has_more, first, last, f"{_CURSOR_PREFIX}{last}" if has_more else None)
    )


def render_deleted_file(id: str) -> bytes:
    return msgspec.json.encode({"id": id, "type": "file_deleted"})
