"""One response, from what was asked to what is kept: the one way that all of them take, whatever carries them.

asked -> past and references -> admitted -> events -> kept -> the last event
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import anyio.to_thread
import msgspec
from msgspec import Raw

from ...core.errors import Conflict, DragomanError
from ...core.reply import Reply
from ...dialects.base import Header
from ...dialects.body import abbreviate
from ...dialects.envelope import ResponseId
from ...dialects.responses import NormalizedItem, ResponsesCall, ResponsesWriter, assign_ids
from ...dialects.responses.input_items import read_item_id
from ...dialects.responses.stored import StoredResponse, to_raw
from ...store import Append, Change, CommitConflict, Item, Key, Put, Store
from ..context import RequestContext
from ..generate import LARGE_BODY, AdmittedCall, admit_call, build_header
from ..persistence import persist_before_finish
from ..streaming import EventBatches, log, wrap_unexpected_error
from .conversation_locks import ConversationLock
from .history import (
    CONVERSATION_KIND,
    ITEMS_SERIES,
    RESPONSE_KIND,
    ResponseHistory,
    build_no_such_conversation_error,
    load_history,
    resolve_references,
)


class ResponseTurn:
    """A response that is about to be made. `batches` may be iterated once; closing it is cancelling.

    When its last event comes out the response is kept, if it is to be. A failure after the first event is kept too.
    """

    def __init__(
        self,
        responses_call: ResponsesCall,
        history: ResponseHistory,
        own_items: tuple[bytes, ...],
        admitted: AdmittedCall,
        response_store: ResponseStore | None,
        conversation_lock: ConversationLock | None = None,
    ) -> None:
        self.responses_call, self.history, self.own_items, self.admitted, self.response_store = (
            responses_call,
            history,
            own_items,
            admitted,
            response_store,
        )
        self._conversation_lock = conversation_lock
        self.writer: ResponsesWriter = responses_call.create_writer(admitted.header)
        self._output: tuple[bytes, ...] | None = None
        self._sampled_ids: tuple[int, ...] = ()

    @property
    def header(self) -> Header:
        return self.admitted.header

    @property
    def batches(self) -> EventBatches:
        return self._iterate_batches()

    @property
    def next_history(self) -> ResponseHistory | None:
        """What a next turn can continue; None before this one has ended well."""
        if self._output is None:
            return None
        return ResponseHistory(
            (*self.history.items, *self.own_items, *self._output),
            self.header.id,
            is_stored=self.response_store is not None,
            sampled_turns=(*self.history.sampled_turns, self._sampled_ids)
            if self._sampled_ids
            else self.history.sampled_turns,
        )

    def build_stored(self, response_object: bytes) -> StoredResponse:
        """whole: the response object."""
        history = self.history
        preceding = history.items if history.id is not None and not history.is_stored else ()
        return StoredResponse(
            object=Raw(response_object),
            input=to_raw(self.own_items),
            before=to_raw(preceding),
            conversation=self.responses_call.conversation,
            upto=history.last_position,
            sampled_ids=self._sampled_ids,
        )

    async def _iterate_batches(self) -> EventBatches:
        async with aclosing(persist_before_finish(self.admitted.run.batches, self._store)) as batches:
            try:
                async for batch in batches:
                    yield batch
            except DragomanError as error:
                await self._store_failure(error)
                raise
            except Exception as error:
                failure = wrap_unexpected_error(error)
                await self._store_failure(failure)
                raise failure from error
            finally:
                if self._conversation_lock is not None:
                    self._conversation_lock.release()

    async def _store(self, reply: Reply) -> None:
        self.record_sampled_ids(reply)
        stored = self.build_stored(self.writer.render_full(reply))
        if self.response_store is not None:
            await self.response_store.save(self, stored)
        self._output = stored.summarize().list_output()

    def record_sampled_ids(self, reply: Reply) -> None:
        """Remember the ids that were sampled, if the engine tells them."""
        prompt_ids, tokens = self.admitted.run.resume_ids, reply.choices[0].tokens
        self._sampled_ids = () if prompt_ids is None else (*prompt_ids, *(token.id for token in tokens))

    async def _store_failure(self, error: DragomanError) -> None:
        """Of a failure before the first event the client hears as an HTTP status, and of no response."""
        if self.response_store is None or not self.writer.has_started:
            return
        try:
            await self.response_store.save(self, self.build_stored(self.writer.render_failure(error)))
        except DragomanError:
            log.warning("a failed response could not be stored")


class ResponseStore:
    """Keeps the turns of one owner."""

    def __init__(self, store: Store, owner: str) -> None:
        self.store, self._owner = store, owner

    def key(self, turn: ResponseTurn) -> Key:
        return Key(self._owner, RESPONSE_KIND, turn.header.id)

    def parent(self, turn: ResponseTurn) -> str | None:
        return turn.history.id if turn.history.is_stored else None

    async def save(self, turn: ResponseTurn, stored: StoredResponse) -> None:
        """Raises StoreUnavailable, and what ends a response whose conversation has changed meanwhile."""
        state = stored.summarize().status
        put = Put(self.key(turn), turn.header.created, stored.encode(), state=state, parent=self.parent(turn))
        await self.commit(put, *self.build_conversation_changes(stored, state))

    def build_conversation_changes(self, stored: StoredResponse, state: str) -> tuple[Change, ...]:
        """What the response adds to its conversation. One that failed adds nothing."""
        if stored.conversation is None or state == "failed":
            return ()
        items = tuple(Item(row, read_item_id(row)) for row in stored.list_items())
        return (Append(Key(self._owner, CONVERSATION_KIND, stored.conversation), ITEMS_SERIES, items),) if items else ()

    async def commit(self, *changes: Change) -> None:
        try:
            await self.store.commit(*changes)
        except CommitConflict as error:
            id = error.change.key.id
            if error.change.key.kind != CONVERSATION_KIND:
                raise
            if error.found_state is None:
                raise build_no_such_conversation_error(id, "conversation") from None
            raise Conflict(
                f"Conversation {abbreviate(id)} received an item with the same id in the meantime.", param="input"
            ) from None


async def open_turn(
    context: RequestContext, responses_call: ResponsesCall, *, local_history: ResponseHistory | None = None
) -> ResponseTurn:
    """Ready to be iterated. local: what the connection remembers of its last turn.

    Raises RequestError for all that can be told before the engine is asked.
    """
    service, owner = context.service, context.caller.owner
    response_store = (
        None if service.store is None or responses_call.store is False else ResponseStore(service.store, owner)
    )
    responses_call = _apply_store_option(responses_call, is_stored=response_store is not None)
    header = responses_call.id.apply_to(build_header(context, responses_call.call))
    conversation_lock = service.conversation_locks.acquire(owner, responses_call.conversation)
    try:
        responses_call, history, own_items = await prepend_history(
            context, responses_call, header.id, local_history=local_history
        )
        return ResponseTurn(
            responses_call,
            history,
            own_items,
            await admit_call(context, responses_call.call, header),
            response_store,
            conversation_lock,
        )
    except BaseException:
        if conversation_lock is not None:
            conversation_lock.release()
        raise


async def prepend_history(
    context: RequestContext,
    responses_call: ResponsesCall,
    response_id: str,
    *,
    local_history: ResponseHistory | None = None,
) -> tuple[ResponsesCall, ResponseHistory, tuple[bytes, ...]]:
    """The call with all that comes before it, what that is, and its own items, whose ids derive from the response's."""
    store, owner = context.service.store, context.caller.owner
    history = await load_history(store, owner, responses_call, local_history)
    input = await resolve_references(store, owner, responses_call.input, history)
    own_items = _render_items(input, history, response_id)
    if history.items or input != responses_call.input:
        responses_call = await _replace_items(responses_call, (*history.items, *own_items))
    return (
        (responses_call.with_sampled_turns(history.sampled_turns) if history.sampled_turns else responses_call),
        history,
        own_items,
    )


def _apply_store_option(responses_call: ResponsesCall, *, is_stored: bool) -> ResponsesCall:
    """What the response says of itself. The id of what is kept is the server's: nobody can choose or guess it."""
    if not is_stored:
        warnings = ("store: the response is not stored",) if responses_call.store else ()
        responses_call = responses_call.with_echo(msgspec.structs.replace(responses_call.echo, store=False))
    elif responses_call.id.requested is None:
        return responses_call
    else:
        warnings = ("request_id is ignored: the server assigns the id of a stored response",)
        responses_call = msgspec.structs.replace(responses_call, id=ResponseId(responses_call.id.prefix, None))
    call = msgspec.structs.replace(responses_call.call, warnings=(*responses_call.call.warnings, *warnings))
    return msgspec.structs.replace(responses_call, call=call)


def _render_items(input: Sequence[NormalizedItem], history: ResponseHistory, response_id: str) -> tuple[bytes, ...]:
    """Its own items. An id that something before it has already is replaced."""
    known_ids = {read_item_id(item) for item in history.items}
    items = [msgspec.structs.replace(item, id=None) if item.id in known_ids else item for item in input]
    return tuple(row for _, row in assign_ids(items, response_id))


async def _replace_items(responses_call: ResponsesCall, items: Sequence[bytes]) -> ResponsesCall:
    if sum(map(len, items)) > LARGE_BODY:
        return await anyio.to_thread.run_sync(responses_call.with_items, items)
    return responses_call.with_items(items)
