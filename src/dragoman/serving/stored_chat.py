"""Chat completions, and those that are stored: listed, read, given other metadata, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec import Raw

from ..core.errors import NotFound, RequestError
from ..core.reply import Reply
from ..dialects.base import Header, Writer
from ..dialects.body import echo
from ..dialects.chat import read_chat_call
from ..dialects.chat.stored import KeptChat, ToKeep, deleted_chat, read_kept_chat, read_update
from ..dialects.pages import Paging, cut, no_such_row, page, read_paging
from ..store import Delete, Key, Put, Record, Refused, Replace, Store
from .answer import Answer
from .endpoint import Http, Whole
from .generate import admit_call, answer, new_header, read_call
from .keeping import keeping

KIND = "chat_completion"


async def create(http: Http) -> Whole | Answer:
    """With `store: true` the completion is stored before its end is told, streamed or whole."""
    asked, store = await read_call(http, read_chat_call), http.service.store
    call, kept = asked.call, asked.kept
    if kept is not None and store is None:
        call = msgspec.structs.replace(call, warnings=(*call.warnings, "store: the completion is not stored"))
    admitted = await admit_call(http, call, new_header(http, call))
    writer, batches = call.writer(admitted.header), admitted.run.batches
    if kept is not None and store is not None:
        batches = keeping(batches, partial(_keep, http, store, kept, writer, admitted.header))
    return answer(http, writer, admitted, batches, stream=call.stream)


async def _keep(http: Http, store: Store, kept: ToKeep, writer: Writer, header: Header, reply: Reply) -> None:
    body = KeptChat(Raw(writer.full(reply)), kept.messages, kept.metadata, header.model).encode()
    await store.commit(Put(Key(http.caller.owner, KIND, header.id), header.created, body))


async def list_all(http: Http) -> Whole | Answer:
    asked, store = read_paging(http.query, descending=False), http.service.store
    metadata = {name[9:-1]: value for name, value in http.query.items() if _is_metadata(name)}
    found = [] if store is None else await _found(store, http.caller.owner, asked, http.query.get("model"), metadata)
    rows = [(record.key.id, kept.object()) for record, kept in found[: asked.limit]]
    return Whole(page(rows, has_more=len(found) > asked.limit))


async def show(http: Http) -> Whole | Answer:
    return Whole(read_kept_chat((await _record(http)).body).object())


async def list_messages(http: Http) -> Whole | Answer:
    asked = read_paging(http.query, descending=False)
    record = await _record(http)
    return Whole(cut(read_kept_chat(record.body).rows(record.key.id), asked))


async def update(http: Http) -> Whole | Answer:
    metadata = read_update(await http.json())
    record = await _record(http)
    kept = msgspec.structs.replace(read_kept_chat(record.body), metadata=metadata)
    try:
        # All else in it never changes, so that of two updates the later one holds.
        await _store(http).commit(Replace(record.key, record.state, kept.encode()))
    except Refused:
        raise _no_such(record.key.id) from None
    return Whole(kept.object())


async def delete(http: Http) -> Whole | Answer:
    id = http.path_params["id"]
    try:
        await _store(http).commit(Delete(Key(http.caller.owner, KIND, id)))
    except Refused:
        raise _no_such(id) from None
    return Whole(deleted_chat(id))


async def _found(
    store: Store, owner: str, asked: Paging, model: str | None, metadata: Mapping[str, str]
) -> list[tuple[Record, KeptChat]]:
    """One more than was asked for, if there is one."""
    after: int | None = None
    if asked.after is not None:
        behind = await store.get(Key(owner, KIND, asked.after))
        if behind is None:
            raise no_such_row(asked.after)
        after = behind.position
    found: list[tuple[Record, KeptChat]] = []
    while len(found) <= asked.limit:
        records = await store.page(owner, KIND, after=after, limit=100, descending=asked.descending)
        for record in records:
            kept = read_kept_chat(record.body)
            if model in (None, kept.model) and kept.fits(metadata):
                found.append((record, kept))
        if len(records) < 100:
            break
        after = records[-1].position
    return found


def _is_metadata(name: str) -> bool:
    """Raises RequestError where it only looks so."""
    if name == "metadata":
        raise RequestError("Write a filter as `metadata[KEY]=VALUE`.", param="metadata")
    return name.startswith("metadata[") and name.endswith("]")


def _store(http: Http) -> Store:
    if http.service.store is None:
        raise _no_such(http.path_params["id"])
    return http.service.store


async def _record(http: Http) -> Record:
    id = http.path_params["id"]
    record = await _store(http).get(Key(http.caller.owner, KIND, id))
    if record is None:
        raise _no_such(id)
    return record


def _no_such(id: str) -> NotFound:
    return NotFound(f"Chat completion with id {echo(id)} not found.")
