"""Pagination as in Anthropic's lists, by the id of the row before or after."""

from __future__ import annotations

from msgspec import Struct

from ..field_errors import abbreviate, invalid_value, parse_digits


class CursorQuery(Struct, frozen=True):
    """The query parameters of a list, newest first.

    limit: maximum rows.
    after, before: id of the row before or after the requested ones.
    """

    limit: int
    after: str | None
    before: str | None


def read_cursor_query(limit: str | None, after: str | None, before: str | None) -> CursorQuery:
    """Parse the query parameters of a list. Raises RequestError."""
    text = "20" if limit is None else limit
    number = parse_digits(text, 9)
    if number is None or not 1 <= number <= 1000:
        raise invalid_value("limit", f"expected an integer from 1 to 1000, got {abbreviate(text)}")
    if after and before:
        raise invalid_value("before_id", "it cannot be combined with `after_id`")
    return CursorQuery(number, after or None, before or None)
