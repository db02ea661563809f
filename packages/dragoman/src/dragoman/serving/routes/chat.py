"""Chat completions: created, or stored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Raw

from ...core.errors import NotFound, RequestError
from ...core.reply import Reply
from ...dialects.chat import read_chat_call
from ...dialects.chat.response_schemas import ChatCompletion, ChatCompletionChunk
from ...dialects.chat.stored_chat import (
    ChatUpdate,
    StoredChat,
    StoredChatFields,
    read_stored_chat,
    read_update,
    render_deleted_chat,
)
from ...dialects.chat.wire import CHAT_REQUEST
from ...dialects.field_errors import abbreviate
from ...dialects.interfaces import Header, Writer
from ...dialects.openai_errors import OPENAI_ERRORS, OpenAIErrorBody
from ...dialects.pagination import paginate, read_page_query, render_page, unknown_cursor_error
from ...store import CommitConflict, Delete, Key, Put, Record, Replace, Store
from ..api_description import EVENTS, OBJECT_PAGE, PAGE, DeletedObjectResponse, Query, response
from ..call_admission import admit_call, build_header
from ..call_reading import read_call
from ..generation_handler import build_responder
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..reply_persistence import ReplyPersistence
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup

CHAT_KIND = "chat_completion"


def build_routes() -> Sequence[Route]:
    completion = "/v1/chat/completions/{id}"
    routes = RouteGroup("Chat Completions", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/v1/chat/completions",
        create,
        "Answer a conversation",
        response(ChatCompletion),
        response(ChatCompletionChunk, OpenAIErrorBody, media=EVENTS),
        bodies=(CHAT_REQUEST,),
        generates=True,
        description="A stream ends with `data: [DONE]`, or with an error and nothing after it.",
        cost=RequestCost.CALL,
    )
    routes.add(
        "GET",
        "/v1/chat/completions",
        list_all,
        "List stored completions",
        OBJECT_PAGE,
        query=(*PAGE, Query("model", str, "Only completions of this model.")),
        description="`metadata[KEY]=VALUE` in the query selects by metadata.",
    )
    routes.add("GET", completion, show, "Retrieve a stored completion", response(ChatCompletion))
    routes.add(
        "POST",
        completion,
        update,
        "Replace a stored completion's metadata",
        response(ChatCompletion),
        bodies=(ChatUpdate,),
    )
    routes.add(
        "DELETE", completion, delete, "Delete a stored completion", response(DeletedObjectResponse)
    )
    routes.add(
        "GET",
        f"{completion}/messages",
        list_messages,
        "List the messages of a stored completion's request",
        OBJECT_PAGE,
        query=PAGE,
    )
    return routes.build()


async def create(http: HttpRequest) -> JsonResponse | Responder:
    """Create a completion. With `store: true` it is stored before the end of its
    response is sent.
    """
    chat_call = await read_call(http, read_chat_call)
    store = http.service.store
    call = chat_call.call
    to_store = chat_call.stored_fields
    if to_store is not None and store is None:
        # Without a store the completion can still be created, so this is only a
        # warning.
        call = msgspec.structs.replace(
            call, warnings=(*call.warnings, "store: the completion is not stored")
        )
    admitted = await admit_call(http, call, build_header(http, call))
    writer = call.writer(admitted.header)
    if to_store is not None and store is not None:
        persist = partial(_store_chat, http, store, to_store, writer, admitted.header)
        admitted.run.batches.add_stage(ReplyPersistence(persist))
    return build_responder(http, writer, admitted, stream=call.stream)


async def _store_chat(
    http: HttpRequest,
    store: Store,
    to_store: StoredChatFields,
    writer: Writer,
    header: Header,
    reply: Reply,
) -> None:
    body = StoredChat(
        Raw(writer.render_full(reply)), to_store.messages, to_store.metadata, header.model
    ).encode()
    await store.commit(Put(Key(http.caller.owner, CHAT_KIND, header.id), header.created, body))


async def list_all(http: HttpRequest) -> JsonResponse | Responder:
    paging = read_page_query(http.query, descending=False)
    store = http.service.store
    metadata = {name[9:-1]: value for name, value in http.query.select(_is_metadata)}
    if store is None:
        return JsonResponse(render_page((), has_more=False))
    owner = http.caller.owner
    model = http.query.get("model")
    position: int | None = None
    if paging.after is not None:
        cursor = await store.get(Key(owner, CHAT_KIND, paging.after))
        if cursor is None:
            raise unknown_cursor_error(paging.after)
        position = cursor.position
    chats: list[tuple[Record, StoredChat]] = []
    # One more than the limit, to know whether there is a next page.
    while len(chats) <= paging.limit:
        records = await store.load_page(
            owner, CHAT_KIND, after=position, limit=100, descending=paging.descending
        )
        for record in records:
            chat = read_stored_chat(record.body)
            if model in (None, chat.model) and chat.matches(metadata):
                chats.append((record, chat))
        # An incomplete page of the store is its last one.
        if len(records) < 100:
            break
        position = records[-1].position
    rows = [(record.key.id, chat.render_object()) for record, chat in chats[: paging.limit]]
    return JsonResponse(render_page(rows, has_more=len(chats) > paging.limit))


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(read_stored_chat((await _load_record(http)).body).render_object())


async def list_messages(http: HttpRequest) -> JsonResponse | Responder:
    paging = read_page_query(http.query, descending=False)
    record = await _load_record(http)
    return JsonResponse(
        paginate(read_stored_chat(record.body).list_messages(record.key.id), paging)
    )


async def update(http: HttpRequest) -> JsonResponse | Responder:
    metadata = read_update(await http.read_json())
    record = await _load_record(http)
    chat = msgspec.structs.replace(read_stored_chat(record.body), metadata=metadata)
    try:
        # Only the metadata ever changes, so an unconditional replace is safe: the last
        # update wins.
        await _require_store(http).commit(Replace(record.key, record.state, chat.encode()))
    except CommitConflict:
        raise _build_not_found_error(record.key.id) from None
    return JsonResponse(chat.render_object())


async def delete(http: HttpRequest) -> JsonResponse | Responder:
    id = http.path_params["id"]
    try:
        await _require_store(http).commit(Delete(Key(http.caller.owner, CHAT_KIND, id)))
    except CommitConflict:
        raise _build_not_found_error(id) from None
    return JsonResponse(render_deleted_chat(id))


def _is_metadata(name: str) -> bool:
    """Whether a query parameter filters by metadata.

    Raises:
        RequestError: it is `metadata` without a key.
    """
    if name == "metadata":
        raise RequestError("Write a filter as `metadata[KEY]=VALUE`.", param="metadata")
    return name.startswith("metadata[") and name.endswith("]")


def _require_store(http: HttpRequest) -> Store:
    if http.service.store is None:
        raise _build_not_found_error(http.path_params["id"])
    return http.service.store


async def _load_record(http: HttpRequest) -> Record:
    id = http.path_params["id"]
    record = await _require_store(http).get(Key(http.caller.owner, CHAT_KIND, id))
    if record is None:
        raise _build_not_found_error(id)
    return record


def _build_not_found_error(id: str) -> NotFound:
    return NotFound(f"Chat completion with id {abbreviate(id)} not found.")
