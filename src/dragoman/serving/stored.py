"""What every route over the store asks of it: that there is one, and lists in pages. Knows no kind of record."""

from __future__ import annotations

from collections.abc import Callable

from ..core.errors import Unsupported
from ..dialects.anthropic.batches import Listing
from ..dialects.body import echo, invalid
from ..dialects.pages import Paging, no_such_row, page
from ..store import Key, Record, Store
from .party import Party

_STEP = 100


def store_of(party: Party) -> Store:
    """Raises Unsupported on a server that keeps nothing."""
    if party.service.store is None:
        raise Unsupported("This request requires a store, and this server has none (--store none).")
    return party.service.store


async def list_records(
    store: Store, owner: str, kind: str, asked: Paging, matches: Callable[[Record], bool] = lambda _: True
) -> bytes:
    """The page of those that match, as OpenAI has lists; a record's body is its object. Raises RequestError."""
    after: int | None = None
    if asked.after is not None:
        cursor = await store.get(Key(owner, kind, asked.after))
        if cursor is None:
            raise no_such_row(asked.after)
        after = cursor.position
    found = await _found(store, owner, kind, after, asked.limit, asked.descending, matches)
    rows = [(record.key.id, record.body) for record in found[: asked.limit]]
    return page(rows, has_more=len(found) > asked.limit)


async def newest_first(
    store: Store, owner: str, kind: str, asked: Listing, matches: Callable[[Record], bool] = lambda _: True
) -> tuple[list[Record], bool]:
    """The page of those that match, as Anthropic has lists, and whether there are more. Raises RequestError."""
    position: int | None = None
    if (id := asked.after or asked.before) is not None:
        cursor = await store.get(Key(owner, kind, id))
        if cursor is None:
            raise invalid("after_id" if asked.after else "before_id", f"there is no {echo(id)} in this list")
        position = cursor.position
    descending = asked.before is None
    found = await _found(store, owner, kind, position, asked.limit, descending, matches)
    rows = found[: asked.limit]
    return rows if descending else rows[::-1], len(found) > asked.limit


async def _found(
    store: Store,
    owner: str,
    kind: str,
    after: int | None,
    limit: int,
    descending: bool,
    matches: Callable[[Record], bool],
) -> list[Record]:
    """More than `limit` where there are more."""
    found: list[Record] = []
    while len(found) <= limit:
        step = await store.page(owner, kind, after=after, limit=_STEP, descending=descending)
        found += filter(matches, step)
        if len(step) < _STEP:
            break
        after = step[-1].position
    return found
