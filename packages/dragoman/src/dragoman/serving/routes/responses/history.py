"""The history that a response continues: previous turns or a conversation's items.

All errors are RequestErrors, raised before the response starts.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ....core.errors import NotFound, RequestError, Unsupported
from ....dialects.field_errors import abbreviate
from ....dialects.responses import InputItem, ResponsesCall
from ....dialects.responses.input_items import find_response_id, read_item_id, read_referenced_item
from ....dialects.responses.stored_response import (
    CONTINUABLE_STATUSES,
    StoredResponse,
    read_stored_response,
)
from ....store import Key, SeriesEntry, Store

RESPONSE_KIND = "response"
CONVERSATION_KIND = "conversation"
"""Kinds of records."""
ITEMS_SERIES = "items"
"""The series of a conversation's items."""


class ResponseHistory(Struct, frozen=True):
    """The history that a response continues.

    items: the items as complete JSON objects, in order.
    positions: those of the items of a conversation; empty without one.
    id: the id of the last response; None if there is none.
    is_stored: whether the last response is in the store.
    last_position: position of the conversation's last item; None without a conversation
        or items.
    sampled_turns: sampled token ids by turn, where known.
    """

    items: tuple[bytes, ...] = ()
    id: str | None = None
    is_stored: bool = True
    last_position: int | None = None
    sampled_turns: tuple[tuple[int, ...], ...] = ()
    positions: tuple[int, ...] = ()

    def cut_after(self, position: int | None) -> ResponseHistory:
        """Return the history without the items of a conversation after a position; None
        is before the first.
        """
        positions = tuple(
            each for each in self.positions if position is not None and each <= position
        )
        return replace(
            self,
            items=self.items[: len(positions)],
            positions=positions,
            last_position=positions[-1] if positions else None,
        )


async def load_history(
    store: Store | None,
    owner: str,
    responses_call: ResponsesCall,
    local_history: ResponseHistory | None,
) -> ResponseHistory:
    """Load the history that `responses_call` continues.

    local_history: the last turn on this WebSocket, which takes precedence over the
        store.
    """
    previous = responses_call.previous_response_id
    if previous is not None:
        # A WebSocket can continue its last response even if that is not stored.
        if local_history is not None and local_history.id == previous:
            return local_history
        if store is None:
            raise _build_needs_store_error("previous_response_id")
        return await _load_chain(store, owner, previous)
    if responses_call.conversation is not None:
        if store is None:
            raise _build_needs_store_error("conversation")
        key = Key(owner, CONVERSATION_KIND, responses_call.conversation)
        if await store.get(key) is None:
            raise build_no_such_conversation_error(responses_call.conversation, "conversation")
        entries = await load_entries(store, key, ITEMS_SERIES)
        return ResponseHistory(
            tuple(entry.body for entry in entries),
            last_position=entries[-1].position if entries else None,
            positions=tuple(entry.position for entry in entries),
        )
    return ResponseHistory()


async def resolve_references(
    store: Store | None, owner: str, input: tuple[InputItem, ...], history: ResponseHistory
) -> tuple[InputItem, ...]:
    """Return the input with references replaced by their items. A reference to an item
    of the history is removed.
    """
    if not any(item.type == "item_reference" for item in input):
        return input
    known_ids = {read_item_id(item) for item in history.items}
    resolved: list[InputItem] = []
    for i, item in enumerate(input):
        if item.type != "item_reference":
            resolved.append(item)
        elif store is None:
            raise _build_needs_store_error(f"input[{i}]")
        elif item.id not in known_ids:
            resolved.append(
                await _load_referenced_item(store, owner, item.id or "", f"input[{i}].id")
            )
    return tuple(resolved)


async def load_entries(
    store: Store, key: Key, series: str, *, last_position: int | None = None
) -> list[SeriesEntry]:
    """Load all entries, or those up to `last_position`."""
    loaded: list[SeriesEntry] = []
    while True:
        batch = await store.load_entries(
            key, series, after=loaded[-1].position if loaded else None, limit=500
        )
        loaded += (
            entry for entry in batch if last_position is None or entry.position <= last_position
        )
        # An incomplete page is the last one, so another read would return nothing.
        if len(batch) < 500 or (last_position is not None and batch[-1].position >= last_position):
            return loaded


def build_no_such_response_error(id: str) -> NotFound:
    return NotFound(f"Response with id {abbreviate(id)} not found.")


def build_no_such_conversation_error(id: str, param: str | None = None) -> NotFound:
    return NotFound(f"Conversation with id {abbreviate(id)} not found.", param=param)


def _build_needs_store_error(param: str) -> Unsupported:
    return Unsupported(
        f"'{param}' is not supported here: this server has no store (--store none). Send the whole "
        "conversation as 'input'.",
        param=param,
    )


async def _load_chain(store: Store, owner: str, previous: str) -> ResponseHistory:
    chain = await store.load_chain(Key(owner, RESPONSE_KIND, previous))
    if chain is None:
        raise _build_no_previous_error(
            f"Previous response with id {abbreviate(previous)} not found."
        )
    if not chain.is_complete:
        missing_id = chain.records[0].parent or ""
        raise _build_no_previous_error(
            f"Previous response with id {abbreviate(previous)} continues "
            f"{abbreviate(missing_id)}, which is not found."
        )
    # Only the last response: each earlier one has been continued before, so its state
    # allowed it.
    if (state := chain.records[-1].state) not in CONTINUABLE_STATUSES:
        raise RequestError(
            f"Previous response with id {abbreviate(previous)} is {state}; only completed and "
            f"incomplete responses can "
            "be continued.",
            param="previous_response_id",
            code="previous_response_not_completed",
        )
    turns = [read_stored_response(record.body) for record in chain.records]
    preceding = await _load_preceding_items(store, owner, turns[0], previous)
    sampled_turns = tuple(turn.sampled_ids for turn in turns if turn.sampled_ids)
    return ResponseHistory(
        (*preceding, *(item for turn in turns for item in turn.list_items())),
        previous,
        sampled_turns=sampled_turns,
    )


def _build_no_previous_error(message: str) -> RequestError:
    return RequestError(message, param="previous_response_id", code="previous_response_not_found")


async def _load_preceding_items(
    store: Store, owner: str, first: StoredResponse, previous: str
) -> tuple[bytes, ...]:
    """Load the items before the first turn of a chain."""
    if first.conversation is None:
        return tuple(map(bytes, first.before))
    key = Key(owner, CONVERSATION_KIND, first.conversation)
    if await store.get(key) is None:
        raise _build_no_previous_error(
            f"Previous response with id {abbreviate(previous)} belongs to conversation "
            f"{abbreviate(first.conversation)}, which is not found."
        )
    # The conversation was empty when this chain of responses began.
    if first.upto is None:
        return ()
    return tuple(
        entry.body
        for entry in await load_entries(store, key, ITEMS_SERIES, last_position=first.upto)
    )


async def _load_referenced_item(store: Store, owner: str, id: str, param: str) -> InputItem:
    """Load an item of a stored response. The id of an item contains the id of its
    response.
    """
    response_id = find_response_id(id)
    record = (
        None if response_id is None else await store.get(Key(owner, RESPONSE_KIND, response_id))
    )
    if record is not None and record.state in CONTINUABLE_STATUSES:
        for item in read_stored_response(record.body).list_items():
            if read_item_id(item) == id:
                return read_referenced_item(item)
    raise NotFound(
        f"Item with id {abbreviate(id)} not found. Items are not persisted when `store` is set to "
        f"false. Try again "
        "with `store` set to true, or remove this item from your input.",
        param=param,
    )
