"""Anthropic Messages, with the memory that its threads ask for: each turn a record whose parent is the turn before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...core.reply import Reply
from ...dialects.anthropic import ThreadNotFound, ThreadUnsupported, read_messages
from ...dialects.anthropic.threads import (
    ThreadRequest,
    build_full_body,
    check_size,
    encode_turn_with_answer,
    read_thread,
    read_turn,
)
from ...dialects.base import GenerationCall, Writer
from ...store import Key, Put, Store
from ..endpoint import HttpRequest, JsonResponse
from ..generate import admit_call, build_header, build_responder, parse_body, run_in_thread_if_large
from ..persistence import persist_before_finish
from ..streaming import Responder

THREAD_KIND = "thread"


async def create(http: HttpRequest) -> JsonResponse | Responder:
    """A message. What a thread continues is read before, what it adds is kept before the last event leaves."""
    call, thread_request = await read_conversation(http)
    admitted = await admit_call(http, call, build_header(http, call))
    batches = admitted.run.batches
    if thread_request is not None:
        # A writer of its own: what has been streamed is of no concern to what is kept.
        batches = persist_before_finish(
            batches, _build_persist(http, thread_request, call.writer(admitted.header), admitted.header.created)
        )
    return build_responder(http, call.writer(admitted.header), admitted, batches, stream=call.stream)


async def read_conversation(http: HttpRequest) -> tuple[GenerationCall, ThreadRequest | None]:
    """The call, with all that comes before it, and what it asked of a memory. Raises as `whole_conversation`."""
    body, thread_request = await expand_thread(http, await http.read_json())
    return await parse_body(http, body, read_messages), thread_request


async def expand_thread(http: HttpRequest, body: bytes) -> tuple[bytes, ThreadRequest | None]:
    """The body of the same request without a memory, and what it asked of one.

    Raises ThreadNotFound where a part of the conversation is missing, ThreadUnsupported on a server that keeps nothing.
    """
    thread_request = await run_in_thread_if_large(read_thread, body)
    if thread_request is None:
        return body, None
    store = _require_store(http)
    if thread_request.previous_id is None:
        return build_full_body(thread_request, ()), thread_request
    chain = await store.chain(Key(http.caller.owner, THREAD_KIND, thread_request.previous_id))
    if chain is None or not chain.is_complete:
        raise ThreadNotFound(thread_request.previous_id)
    body = build_full_body(thread_request, [read_turn(record.body) for record in chain.records])
    check_size(body, http.service.options.max_body_bytes)
    return body, thread_request


def _build_persist(
    http: HttpRequest, thread_request: ThreadRequest, writer: Writer, created: int
) -> Callable[[Reply], Awaitable[None]]:
    store, owner = _require_store(http), http.caller.owner

    async def persist(reply: Reply) -> None:
        id, turn = encode_turn_with_answer(thread_request, writer.render_full(reply))
        await store.commit(Put(Key(owner, THREAD_KIND, id), created, turn, parent=thread_request.previous_id))

    return persist


def _require_store(http: HttpRequest) -> Store:
    """Raises ThreadUnsupported on a server that keeps nothing: the official SDK then sends everything itself."""
    if http.service.store is None:
        raise ThreadUnsupported
    return http.service.store
