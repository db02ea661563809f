"""Pagination as in OpenAI's list endpoints: parses the query and serializes a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..core.errors import RequestError
from .field_errors import abbreviate, check_one_of, invalid_value, parse_digits
from .json_encoding import encode_string

MAX_LIMIT = 100

PageRow = tuple[str, bytes]
"""A row of a list: its id, and the JSON object."""


class PageQuery(Struct, frozen=True):
    """The query parameters of one page.

    limit: maximum rows.
    descending: newest first.
    after: id of the last row of the previous page.
    """

    limit: int = 20
    descending: bool = True
    after: str | None = None


def read_page_query(
    query: Mapping[str, str], *, descending: bool, default: int = 20, max_limit: int = MAX_LIMIT
) -> PageQuery:
    """Parse the query parameters. Raises RequestError.

    descending, default: order and limit if the query does not set them.
    """
    text = query.get("limit", str(default))
    limit = parse_digits(text, 9)
    if limit is None or not 1 <= limit <= max_limit:
        raise invalid_value(
            "limit", f"expected an integer from 1 to {max_limit}, got {abbreviate(text)}"
        )
    order = query.get("order")
    if order is not None:
        descending = check_one_of(order, ("asc", "desc"), "order") == "desc"
    return PageQuery(limit, descending, query.get("after") or None)


def unknown_cursor_error(cursor: str) -> RequestError:
    return invalid_value("after", f"there is no {abbreviate(cursor)} in this list")


def render_page(rows: Sequence[PageRow], *, has_more: bool) -> bytes:
    """Render a page. The ids of an empty page are empty strings because the SDK's types
    do not allow null.
    """
    first, last = (rows[0][0], rows[-1][0]) if rows else ("", "")
    data = b",".join(row for _, row in rows)
    return b'{"object":"list","data":[%s],"first_id":%s,"last_id":%s,"has_more":%s}' % (
        data, encode_string(first), encode_string(last), b"true" if has_more else b"false",
    )  # fmt: skip


def paginate(rows: Sequence[PageRow], query: PageQuery) -> bytes:
    """Serialize a page of a list. Raises RequestError if no row has the id `after`.

    rows: all rows in ascending order.
    """
    ordered = rows[::-1] if query.descending else rows
    begin = 0
    if query.after is not None:
        positions = (position for position, (id, _) in enumerate(ordered, 1) if id == query.after)
        begin = next(positions, 0)
        if not begin:
            raise unknown_cursor_error(query.after)
    end = begin + query.limit
    return render_page(ordered[begin:end], has_more=end < len(ordered))
