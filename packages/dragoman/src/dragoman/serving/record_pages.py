"""Pages of stored records."""

from __future__ import annotations

from collections.abc import Callable

from ..core.errors import Unsupported
from ..dialects.anthropic.pagination import CursorQuery
from ..dialects.field_errors import abbreviate, invalid_value
from ..dialects.pagination import PageQuery, render_page, unknown_cursor_error
from ..store import Key, Record, Store
from .request_context import RequestContext

_BATCH_SIZE = 100


def require_store(context: RequestContext) -> Store:
    """Return the store.

    Raises:
        Unsupported: storage is disabled.
    """
    if context.service.store is None:
        raise Unsupported("This request requires a store, and this server has none (--store none).")
    return context.service.store


async def list_records(
    store: Store,
    owner: str,
    kind: str,
    paging: PageQuery,
    matches: Callable[[Record], bool] = lambda _: True,
) -> bytes:
    """Render a page of matching records in OpenAI's list format; a record's body is its
    JSON object.

    Raises:
        RequestError: the cursor is unknown.
    """
    position: int | None = None
    if paging.after is not None:
        cursor = await store.get(Key(owner, kind, paging.after))
        if cursor is None:
            raise unknown_cursor_error(paging.after)
        position = cursor.position
    records = await _find_records(
        store, owner, kind, position, paging.limit, paging.descending, matches
    )
    rows = [(record.key.id, record.body) for record in records[: paging.limit]]
    return render_page(rows, has_more=len(records) > paging.limit)


async def list_newest_first(
    store: Store,
    owner: str,
    kind: str,
    listing: CursorQuery,
    matches: Callable[[Record], bool] = lambda _: True,
) -> tuple[list[Record], bool]:
    """Return a page of matching records with Anthropic's cursors, and whether there are
    more.

    Raises:
        RequestError: the cursor is unknown.
    """
    position: int | None = None
    if (id := listing.after or listing.before) is not None:
        cursor = await store.get(Key(owner, kind, id))
        if cursor is None:
            raise invalid_value(
                "after_id" if listing.after else "before_id",
                f"there is no {abbreviate(id)} in this list",
            )
        position = cursor.position
    # `before_id` requests the previous page: read the records nearest to the cursor
    # first, and reverse them below.
    descending = listing.before is None
    records = await _find_records(store, owner, kind, position, listing.limit, descending, matches)
    rows = records[: listing.limit]
    return rows if descending else rows[::-1], len(records) > listing.limit


async def _find_records(
    store: Store,
    owner: str,
    kind: str,
    position: int | None,
    limit: int,
    descending: bool,
    matches: Callable[[Record], bool],
) -> list[Record]:
    """Return the matching records in order; more than `limit` of them if there are
    more.
    """
    records: list[Record] = []
    # Filters apply after the store has read a page, so several pages may be needed.
    while len(records) <= limit:
        batch = await store.load_page(
            owner, kind, after=position, limit=_BATCH_SIZE, descending=descending
        )
        records += filter(matches, batch)
        if len(batch) < _BATCH_SIZE:
            break
        position = batch[-1].position
    return records
