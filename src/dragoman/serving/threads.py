"""Anthropic Messages, with the memory that its threads ask for: each turn a record whose parent is the turn before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..core.reply import Reply
from ..dialects.anthropic import ThreadNotFound, ThreadUnsupported, read_messages
from ..dialects.anthropic.threads import (
    ThreadOrder,
    check_size,
    read_thread,
    read_turn,
    turn_with_answer,
    whole_body,
)
from ..dialects.base import Call, Writer
from ..store import Key, Put, Store
from .answer import Answer
from .endpoint import Http, Whole
from .generate import admit_call, answer, new_header, off_the_loop, read_body
from .keeping import keeping

THREAD = "thread"


async def create(http: Http) -> Whole | Answer:
    """A message. What a thread continues is read before, what it adds is kept before the last event leaves."""
    call, order = await read_conversation(http)
    admitted = await admit_call(http, call, new_header(http, call))
    batches = admitted.run.batches
    if order is not None:
        # A writer of its own: what has been streamed is of no concern to what is kept.
        batches = keeping(batches, _keeper(http, order, call.writer(admitted.header), admitted.header.created))
    return answer(http, call.writer(admitted.header), admitted, batches, stream=call.stream)


async def read_conversation(http: Http) -> tuple[Call, ThreadOrder | None]:
    """The call, with all that comes before it, and what it asked of a memory. Raises as `whole_conversation`."""
    body, order = await whole_conversation(http, await http.json())
    return await read_body(http, body, read_messages), order


async def whole_conversation(http: Http, body: bytes) -> tuple[bytes, ThreadOrder | None]:
    """The body of the same request without a memory, and what it asked of one.

    Raises ThreadNotFound where a part of the conversation is missing, ThreadUnsupported on a server that keeps nothing.
    """
    order = await off_the_loop(read_thread, body)
    if order is None:
        return body, None
    store = _store(http)
    if order.previous is None:
        return whole_body(order, ()), order
    chain = await store.chain(Key(http.caller.owner, THREAD, order.previous))
    if chain is None or not chain.whole:
        raise ThreadNotFound(order.previous)
    body = whole_body(order, [read_turn(record.body) for record in chain.records])
    check_size(body, http.service.options.max_body_bytes)
    return body, order


def _keeper(http: Http, order: ThreadOrder, writer: Writer, created: int) -> Callable[[Reply], Awaitable[None]]:
    store, owner = _store(http), http.caller.owner

    async def keep(reply: Reply) -> None:
        id, turn = turn_with_answer(order, writer.full(reply))
        await store.commit(Put(Key(owner, THREAD, id), created, turn, parent=order.previous))

    return keep


def _store(http: Http) -> Store:
    """Raises ThreadUnsupported on a server that keeps nothing: the official SDK then sends everything itself."""
    if http.service.store is None:
        raise ThreadUnsupported
    return http.service.store
