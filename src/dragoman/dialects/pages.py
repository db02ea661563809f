"""Lists that come in pages, as OpenAI's list endpoints have them: what was asked for, and the page. Knows no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..core.errors import RequestError
from .body import echo, invalid, one_of
from .text import quoted

MAX_LIMIT = 100

Row = tuple[str, bytes]
"""Its id, and the whole JSON object."""


class Paging(Struct, frozen=True):
    """after: the id of the row behind which the page begins."""

    limit: int = 20
    descending: bool = True
    after: str | None = None


def read_paging(query: Mapping[str, str], *, descending: bool, default: int = 20, most: int = MAX_LIMIT) -> Paging:
    """descending, default: the order and the limit where the query names none. Raises RequestError."""
    limit = query.get("limit", str(default))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 9 and 1 <= int(limit) <= most):
        raise invalid("limit", f"expected an integer from 1 to {most}, got {echo(limit)}")
    order = query.get("order")
    if order:
        descending = one_of(order, ("asc", "desc"), "order") == "desc"
    return Paging(int(limit), descending, query.get("after") or None)


def no_such_row(after: str) -> RequestError:
    return invalid("after", f"there is no {echo(after)} in this list")


def page(rows: Sequence[Row], *, has_more: bool) -> bytes:
    """The ids of an empty page are empty: their types know no null."""
    first, last = (rows[0][0], rows[-1][0]) if rows else ("", "")
    data = b",".join(row for _, row in rows)
    return b'{"object":"list","data":[%s],"first_id":%s,"last_id":%s,"has_more":%s}' % (
        data, quoted(first), quoted(last), b"true" if has_more else b"false",
    )  # fmt: skip


def cut(rows: Sequence[Row], asked: Paging) -> bytes:
    """The page of rows that are all at hand, in ascending order. Raises RequestError where `after` is none of them."""
    ordered = rows[::-1] if asked.descending else rows
    begin = 0
    if asked.after is not None:
        places = (place for place, (id, _) in enumerate(ordered, 1) if id == asked.after)
        begin = next(places, 0)
        if not begin:
            raise no_such_row(asked.after)
    end = begin + asked.limit
    return page(ordered[begin:end], has_more=end < len(ordered))
