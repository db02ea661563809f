"""The Conversations API: items that are kept under a name, for responses to go on from."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import Conflict, NotFound, Unsupported
from ...dialects.body import echo
from ...dialects.pages import Row, no_such_row, page, read_paging
from ...dialects.responses import InputItem
from ...dialects.responses.conversations import (
    CONVERSATION_PREFIX,
    NewItems,
    conversation_object,
    deleted_conversation,
    item_prefix,
    read_addition,
    read_creation,
    read_update,
)
from ...store import Append, Delete, Item, Key, Put, Record, Refused, Remove, Replace, Store
from ..answer import Answer
from ..endpoint import Http, Whole
from ..generate import refuse_unknown
from .past import CONVERSATION, ITEMS, no_such_conversation


async def create(http: Http) -> Whole | Answer:
    body = await http.json()
    new = read_creation(body)
    refuse_unknown(new.unknown, strict=http.service.options.strict)
    key = Key(http.caller.owner, CONVERSATION, http.service.ids.new(CONVERSATION_PREFIX))
    created = int(http.service.clock.now())
    rows = _rows(http, new.items)
    await _store(http).commit(Put(key, created, new.metadata), *_added(key, rows))
    return Whole(conversation_object(key.id, created, new.metadata), warnings=_ignored(new))


async def show(http: Http) -> Whole | Answer:
    return Whole(_object(await _record(http)))


async def update(http: Http) -> Whole | Answer:
    metadata = read_update(await http.json())
    record = await _record(http)
    try:
        await _store(http).commit(Replace(record.key, record.state, metadata))
    except Refused:
        raise no_such_conversation(record.key.id) from None
    return Whole(conversation_object(record.key.id, record.created, metadata))


async def delete(http: Http) -> Whole | Answer:
    key = _key(http)
    try:
        await _store(http).commit(Delete(key))
    except Refused:
        raise no_such_conversation(key.id) from None
    return Whole(deleted_conversation(key.id))


async def add_items(http: Http) -> Whole | Answer:
    new = read_addition(await http.json())
    refuse_unknown(new.unknown, strict=http.service.options.strict)
    key = (await _record(http)).key
    rows = _rows(http, new.items)
    try:
        await _store(http).commit(*_added(key, rows))
    except Refused as refused:
        if refused.found is None:
            raise no_such_conversation(key.id) from None
        raise Conflict("An item of the same id is in this conversation already.", param="items") from None
    return Whole(page(rows, has_more=False), warnings=_ignored(new))


async def list_items(http: Http) -> Whole | Answer:
    asked = read_paging(http.query, descending=True)
    key, store = (await _record(http)).key, _store(http)
    after: int | None = None
    if asked.after is not None:
        found = await store.entry(key, ITEMS, asked.after)
        if found is None:
            raise no_such_row(asked.after)
        after = found.position
    entries = await store.entries(key, ITEMS, after=after, limit=asked.limit + 1, descending=asked.descending)
    rows = [(entry.id or "", entry.body) for entry in entries[: asked.limit]]
    return Whole(page(rows, has_more=len(entries) > asked.limit))


async def show_item(http: Http) -> Whole | Answer:
    key, id = (await _record(http)).key, http.path_params["item"]
    entry = await _store(http).entry(key, ITEMS, id)
    if entry is None:
        raise _no_such_item(id, key)
    return Whole(entry.body)


async def delete_item(http: Http) -> Whole | Answer:
    """What is left is answered: the conversation."""
    record, id = await _record(http), http.path_params["item"]
    try:
        await _store(http).commit(Remove(record.key, ITEMS, id))
    except Refused:
        raise _no_such_item(id, record.key) from None
    return Whole(_object(record))


def _rows(http: Http, items: Sequence[InputItem]) -> list[Row]:
    ids = http.service.ids
    named = [(item.id or ids.new(item_prefix(item)), item) for item in items]
    if len({id for id, _ in named}) < len(named):
        raise Conflict("Two items have the same id.", param="items")
    return [(id, item.row(id)) for id, item in named]


def _added(key: Key, rows: Sequence[Row]) -> tuple[Append, ...]:
    items = tuple(Item(row, id) for id, row in rows)
    return (Append(key, ITEMS, items),) if items else ()


def _object(record: Record) -> bytes:
    return conversation_object(record.key.id, record.created, record.body)


def _ignored(new: NewItems) -> tuple[str, ...]:
    return tuple(f"{name} is ignored: unknown field" for name in new.unknown)


def _key(http: Http) -> Key:
    return Key(http.caller.owner, CONVERSATION, http.path_params["id"])


def _store(http: Http) -> Store:
    if http.service.store is None:
        raise Unsupported("This server has no store (--store none) and does not support conversations.")
    return http.service.store


async def _record(http: Http) -> Record:
    key = _key(http)
    record = await _store(http).get(key)
    if record is None:
        raise no_such_conversation(key.id)
    return record


def _no_such_item(id: str, key: Key) -> NotFound:
    return NotFound(f"Item with id {echo(id)} not found in conversation {echo(key.id)}.")
