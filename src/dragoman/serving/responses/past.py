"""What comes before a response: earlier turns, a conversation's items, the items that references stand for.

Only reads. All errors are RequestErrors, told before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...core.errors import NotFound, RequestError, Unsupported
from ...dialects.body import echo
from ...dialects.responses import InputItem, ResponsesCall
from ...dialects.responses.kept import CONTINUABLE, Kept, read_kept
from ...dialects.responses.normal import item_id, response_of, stored_item
from ...store import Entry, Key, Record, Store

RESPONSE, CONVERSATION = "response", "conversation"
"""Kinds of records."""
ITEMS = "items"
"""The series of a conversation's record."""


class Past(Struct, frozen=True):
    """items: whole JSON objects, in order. id: of the response that they end with; None where there is none.

    kept: whether that response can be found again by its id. said: the ids of what was sampled, turn by turn, as far as
    they are known. upto: the position in the conversation of the last of
    them; None where there is no conversation, or nothing in it.
    """

    items: tuple[bytes, ...] = ()
    id: str | None = None
    kept: bool = True
    upto: int | None = None
    said: tuple[tuple[int, ...], ...] = ()


async def recall(store: Store | None, owner: str, asked: ResponsesCall, local: Past | None) -> Past:
    """What comes before `asked`. local: what its connection remembers, which goes before the store."""
    previous = asked.previous_response_id
    if previous is not None:
        if local is not None and local.id == previous:
            return local
        if store is None:
            raise _needs_store("previous_response_id")
        return await _chain(store, owner, previous)
    if asked.conversation is not None:
        if store is None:
            raise _needs_store("conversation")
        return await _conversation(store, owner, asked.conversation)
    return Past()


async def resolve(store: Store | None, owner: str, input: Sequence[InputItem], past: Past) -> tuple[InputItem, ...]:
    """The input with its references replaced. One to something that comes before already adds nothing."""
    if not any(item.type == "item_reference" for item in input):
        return tuple(input)
    known = {item_id(item) for item in past.items}
    resolved: list[InputItem] = []
    for i, item in enumerate(input):
        if item.type != "item_reference":
            resolved.append(item)
        elif store is None:
            raise _needs_store(f"input[{i}]")
        elif item.id not in known:
            resolved.append(await _referred(store, owner, item.id or "", f"input[{i}].id"))
    return tuple(resolved)


async def entries(store: Store, key: Key, series: str, *, upto: int | None = None) -> list[Entry]:
    """All entries, or those up to the position `upto`."""
    found: list[Entry] = []
    while True:
        batch = await store.entries(key, series, after=found[-1].position if found else None, limit=500)
        found += (entry for entry in batch if upto is None or entry.position <= upto)
        if len(batch) < 500 or (upto is not None and batch[-1].position >= upto):
            return found


def no_such_response(id: str) -> NotFound:
    return NotFound(f"Response with id {echo(id)} not found.")


def no_such_conversation(id: str, param: str | None = None) -> NotFound:
    return NotFound(f"Conversation with id {echo(id)} not found.", param=param)


def _needs_store(param: str) -> Unsupported:
    return Unsupported(
        f"'{param}' is not supported here: this server has no store (--store none). Send the whole "
        "conversation as 'input'.",
        param=param,
    )


async def _chain(store: Store, owner: str, previous: str) -> Past:
    chain = await store.chain(Key(owner, RESPONSE, previous))
    if chain is None:
        raise _no_previous(f"Previous response with id {echo(previous)} not found.")
    if not chain.whole:
        lost = chain.records[0].parent or ""
        raise _no_previous(f"Previous response with id {echo(previous)} continues {echo(lost)}, which is not found.")
    _check_continuable(chain.records[-1])
    turns = [read_kept(record.body) for record in chain.records]
    first = await _before(store, owner, turns[0], previous)
    said = tuple(turn.said for turn in turns if turn.said)
    return Past((*first, *(item for turn in turns for item in turn.items())), previous, said=said)


def _check_continuable(record: Record) -> None:
    if record.state not in CONTINUABLE:
        raise RequestError(
            f"Previous response with id {echo(record.key.id)} is {record.state}; only completed and "
            "incomplete responses can be continued.",
            param="previous_response_id",
            code="previous_response_not_completed",
        )


def _no_previous(message: str) -> RequestError:
    return RequestError(message, param="previous_response_id", code="previous_response_not_found")


async def _before(store: Store, owner: str, first: Kept, previous: str) -> tuple[bytes, ...]:
    """What comes before the first turn of a chain."""
    if first.conversation is None:
        return tuple(map(bytes, first.before))
    key = Key(owner, CONVERSATION, first.conversation)
    if await store.get(key) is None:
        raise _no_previous(
            f"Previous response with id {echo(previous)} belongs to conversation {echo(first.conversation)}, "
            "which is not found."
        )
    if first.upto is None:
        return ()
    return tuple(entry.body for entry in await entries(store, key, ITEMS, upto=first.upto))


async def _conversation(store: Store, owner: str, id: str) -> Past:
    key = Key(owner, CONVERSATION, id)
    if await store.get(key) is None:
        raise no_such_conversation(id, "conversation")
    found = await entries(store, key, ITEMS)
    return Past(tuple(entry.body for entry in found), upto=found[-1].position if found else None)


async def _referred(store: Store, owner: str, id: str, at: str) -> InputItem:
    """An item's id tells which response it came with."""
    response = response_of(id)
    record = None if response is None else await store.get(Key(owner, RESPONSE, response))
    if record is not None and record.state in CONTINUABLE:
        for item in read_kept(record.body).items():
            if item_id(item) == id:
                return stored_item(item)
    raise NotFound(
        f"Item with id {echo(id)} not found. Items are not persisted when `store` is set to false. Try again with "
        "`store` set to true, or remove this item from your input.",
        param=at,
    )
