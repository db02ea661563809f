"""Anthropic's files: their object, what an upload asks for, their list (anthropic SDK 2.x, types/file_metadata.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from ..body import echo, invalid
from .batches import Listing, read_listing

_LEAST_SECONDS, _MOST_SECONDS = 3600, 7776000
_MOST_IDS = 100
_CURSOR = "page_"


class FileMetadata(Struct, frozen=True, kw_only=True):
    """Times are RFC 3339."""

    id: str
    type: str = "file"
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None = None
    downloadable: bool = True


class _Page(Struct, frozen=True):
    data: list[Raw]
    has_more: bool
    first_id: str | None
    last_id: str | None
    next_page: str | None


def names_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether a request to a path that OpenAI has too is Anthropic's: all clients of theirs name their version."""
    return "anthropic-version" in headers


def seconds_until_expiry(said: str | None) -> int | None:
    """Raises RequestError unless it is a number of seconds between an hour and 90 days."""
    if said is None:
        return None
    if not (said.isascii() and said.isdecimal() and _LEAST_SECONDS <= int(said[:12]) <= _MOST_SECONDS):
        raise invalid("expires_in_seconds", f"expected from {_LEAST_SECONDS} to {_MOST_SECONDS}, got {echo(said)}")
    return int(said)


def read_file_listing(query: Mapping[str, str]) -> Listing:
    """By a cursor, as the SDK asks today, or by ids, as it did. Raises RequestError."""
    page, after = query.get("page"), query.get("after_id")
    if page is not None:
        if after or query.get("before_id"):
            raise invalid("page", "it excludes `after_id` and `before_id`")
        after = page.removeprefix(_CURSOR)
    return read_listing(query.get("limit"), after, query.get("before_id"))


def chosen_ids(ids: Sequence[str], query: Mapping[str, str]) -> tuple[str, ...]:
    """The files that a list is to be of, each once. Raises RequestError."""
    chosen = tuple(dict.fromkeys(ids))
    if len(chosen) > _MOST_IDS:
        raise invalid("ids", f"expected at most {_MOST_IDS}, got {len(chosen)}")
    if chosen and ("page" in query or "limit" in query):
        raise invalid("ids", "it excludes `page` and `limit`")
    return chosen


def listed_files(rows: Sequence[FileMetadata], *, has_more: bool) -> bytes:
    first, last = (rows[0].id, rows[-1].id) if rows else (None, None)
    data = [Raw(msgspec.json.encode(row)) for row in rows]
    return msgspec.json.encode(_Page(data, has_more, first, last, f"{_CURSOR}{last}" if has_more else None))


def file_deleted(id: str) -> bytes:
    return msgspec.json.encode({"id": id, "type": "file_deleted"})
