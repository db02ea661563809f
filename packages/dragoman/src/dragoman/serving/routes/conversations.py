"""The Conversations API: stored lists of items, which responses can continue."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import Conflict, NotFound, Unsupported
from ...dialects.field_errors import abbreviate, invalid_value
from ...dialects.openai_errors import OPENAI_ERRORS
from ...dialects.pagination import PageRow, read_page_query, render_page, unknown_cursor_error
from ...dialects.responses import InputItem
from ...dialects.responses.conversations import (
    CONVERSATION_PREFIX,
    ConversationBody,
    ConversationItems,
    ConversationItemsBody,
    ConversationUpdate,
    get_id_prefix,
    read_add_body,
    read_create_body,
    read_update_body,
    render_conversation,
    render_deleted_conversation,
)
from ...dialects.responses.response_schemas import ConversationObject, DeletedConversation
from ...store import (
    Append,
    CommitConflict,
    Delete,
    Item,
    Key,
    Put,
    Record,
    Remove,
    Replace,
    Store,
    is_storable,
)
from ..api_description import OBJECT_PAGE, PAGE, response
from ..call_reading import parse_body
from ..client_warnings import reject_unknown_fields
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..responder import Responder
from ..route import Route, RouteGroup
from .responses.history import CONVERSATION_KIND, ITEMS_SERIES, build_no_such_conversation_error


def build_routes() -> Sequence[Route]:
    conversation = "/v1/conversations/{id}"
    routes = RouteGroup("Conversations", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/v1/conversations",
        create,
        "Create a conversation",
        response(ConversationObject),
        bodies=(ConversationBody,),
        is_body_optional=True,
    )
    routes.add("GET", conversation, show, "Retrieve a conversation", response(ConversationObject))
    routes.add(
        "POST",
        conversation,
        update,
        "Replace a conversation's metadata",
        response(ConversationObject),
        bodies=(ConversationUpdate,),
    )
    routes.add(
        "DELETE", conversation, delete, "Delete a conversation", response(DeletedConversation)
    )
    routes.add(
        "GET",
        f"{conversation}/items",
        list_items,
        "List a conversation's items",
        OBJECT_PAGE,
        query=PAGE,
    )
    routes.add(
        "POST",
        f"{conversation}/items",
        add_items,
        "Add items to a conversation",
        OBJECT_PAGE,
        bodies=(ConversationItemsBody,),
    )
    routes.add(
        "GET",
        f"{conversation}/items/{{item}}",
        show_item,
        "Retrieve an item",
        response(dict[str, object]),
    )
    routes.add(
        "DELETE",
        f"{conversation}/items/{{item}}",
        delete_item,
        "Delete an item",
        response(ConversationObject),
    )
    return routes.build()


async def create(http: HttpRequest) -> JsonResponse | Responder:
    new_items = await parse_body(http, await http.read_json(), read_create_body)
    reject_unknown_fields(new_items.unknown, strict=http.service.options.strict)
    key = Key(http.caller.owner, CONVERSATION_KIND, http.service.ids.new(CONVERSATION_PREFIX))
    created = int(http.service.clock.now())
    rows = _build_rows(http, new_items.items)
    await _require_store(http).commit(
        Put(key, created, new_items.metadata), *_build_appends(key, rows)
    )
    return JsonResponse(
        render_conversation(key.id, created, new_items.metadata),
        warnings=_list_item_warnings(new_items),
    )


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(_render_conversation(await _load_record(http)))


async def update(http: HttpRequest) -> JsonResponse | Responder:
    metadata = read_update_body(await http.read_json())
    record = await _load_record(http)
    try:
        await _require_store(http).commit(Replace(record.key, record.state, metadata))
    except CommitConflict:
        raise build_no_such_conversation_error(record.key.id) from None
    return JsonResponse(render_conversation(record.key.id, record.created, metadata))


async def delete(http: HttpRequest) -> JsonResponse | Responder:
    key = _build_key(http)
    try:
        await _require_store(http).commit(Delete(key))
    except CommitConflict:
        raise build_no_such_conversation_error(key.id) from None
    return JsonResponse(render_deleted_conversation(key.id))


async def add_items(http: HttpRequest) -> JsonResponse | Responder:
    new_items = await parse_body(http, await http.read_json(), read_add_body)
    reject_unknown_fields(new_items.unknown, strict=http.service.options.strict)
    key = (await _load_record(http)).key
    rows = _build_rows(http, new_items.items)
    try:
        await _require_store(http).commit(*_build_appends(key, rows))
    except CommitConflict as error:
        # The conversation was deleted after it was loaded above.
        if error.found_state is None:
            raise build_no_such_conversation_error(key.id) from None
        raise Conflict(
            "The conversation already has an item with this id.", param="items"
        ) from None
    return JsonResponse(render_page(rows, has_more=False), warnings=_list_item_warnings(new_items))


async def list_items(http: HttpRequest) -> JsonResponse | Responder:
    paging = read_page_query(http.query, descending=True)
    key = (await _load_record(http)).key
    store = _require_store(http)
    position: int | None = None
    if paging.after is not None:
        cursor = await store.load_entry(key, ITEMS_SERIES, paging.after)
        if cursor is None:
            raise unknown_cursor_error(paging.after)
        position = cursor.position
    # One more than the limit, to know whether there is a next page.
    entries = await store.load_entries(
        key, ITEMS_SERIES, after=position, limit=paging.limit + 1, descending=paging.descending
    )
    rows = [(entry.id or "", entry.body) for entry in entries[: paging.limit]]
    return JsonResponse(render_page(rows, has_more=len(entries) > paging.limit))


async def show_item(http: HttpRequest) -> JsonResponse | Responder:
    key = (await _load_record(http)).key
    id = http.path_params["item"]
    entry = await _require_store(http).load_entry(key, ITEMS_SERIES, id)
    if entry is None:
        raise _build_no_such_item_error(id, key)
    return JsonResponse(entry.body)


async def delete_item(http: HttpRequest) -> JsonResponse | Responder:
    """Delete an item and return the conversation."""
    record = await _load_record(http)
    id = http.path_params["item"]
    try:
        await _require_store(http).commit(Remove(record.key, ITEMS_SERIES, id))
    except CommitConflict:
        raise _build_no_such_item_error(id, record.key) from None
    return JsonResponse(_render_conversation(record))


def _build_rows(http: HttpRequest, items: Sequence[InputItem]) -> list[PageRow]:
    ids = http.service.ids
    for index, item in enumerate(items):
        if item.id is not None and not is_storable(item.id):
            raise invalid_value(f"items[{index}].id", "an id cannot contain NUL")
    items_with_ids = [(item.id or ids.new(get_id_prefix(item)), item) for item in items]
    if len({id for id, _ in items_with_ids}) < len(items_with_ids):
        raise Conflict("Two items have the same id.", param="items")
    return [(id, item.render(id)) for id, item in items_with_ids]


def _build_appends(key: Key, rows: Sequence[PageRow]) -> tuple[Append, ...]:
    items = tuple(Item(row, id) for id, row in rows)
    return (Append(key, ITEMS_SERIES, items),) if items else ()


def _render_conversation(record: Record) -> bytes:
    return render_conversation(record.key.id, record.created, record.body)


def _list_item_warnings(new_items: ConversationItems) -> tuple[str, ...]:
    return tuple(f"{name} is ignored: unknown field" for name in new_items.unknown)


def _build_key(http: HttpRequest) -> Key:
    return Key(http.caller.owner, CONVERSATION_KIND, http.path_params["id"])


def _require_store(http: HttpRequest) -> Store:
    if http.service.store is None:
        raise Unsupported(
            "This server has no store (--store none) and does not support conversations."
        )
    return http.service.store


async def _load_record(http: HttpRequest) -> Record:
    key = _build_key(http)
    record = await _require_store(http).get(key)
    if record is None:
        raise build_no_such_conversation_error(key.id)
    return record


def _build_no_such_item_error(id: str, key: Key) -> NotFound:
    return NotFound(
        f"Item with id {abbreviate(id)} not found in conversation {abbreviate(key.id)}."
    )
