"""A response turn from the request to the stored response, over HTTP, WebSocket or in
the background.

Order: request -> history and references -> admission -> events -> store -> last event.
"""

from __future__ import annotations

from functools import cached_property

import anyio.to_thread
import msgspec
from msgspec import Raw

from ....core.errors import Conflict, DragomanError
from ....core.reply import Reply
from ....core.server_tools import ToolList
from ....dialects.chunk_envelope import ResponseId
from ....dialects.field_errors import abbreviate
from ....dialects.interfaces import Header
from ....dialects.responses import ResponsesCall, ResponsesWriter, assign_ids
from ....dialects.responses.input_items import read_item_id, read_stored_items
from ....dialects.responses.responses_call import RequestedTools
from ....dialects.responses.stored_response import StoredResponse, to_raw
from ....pipeline.driver import BatchStream
from ....store import Append, Change, CommitConflict, Item, Key, Put, Store
from ...call_admission import (
    AdmittedCall,
    admit_call,
    build_header,
    check_tool_caller,
    list_requested_tools,
)
from ...call_reading import LARGE_BODY
from ...reply_persistence import ReplyPersistence
from ...request_context import RequestContext
from ...responder import log, wrap_unexpected_error
from ...tool_journal import ToolJournal
from .conversation_locks import ConversationLock, ConversationLocks
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
    """A response turn. `batches` can be iterated once; closing it cancels the
    generation.

    history: the history that the turn continues.
    response_store: None if the response is not stored.
    conversation_lock: released at the end of the turn.
    journal: the progress of a background response that can be continued after a restart;
        None for others.
    """

    def __init__(
        self,
        responses_call: ResponsesCall,
        history: ResponseHistory,
        admitted: AdmittedCall,
        response_store: ResponseStore | None,
        conversation_lock: ConversationLock | None = None,
        journal: ToolJournal | None = None,
    ) -> None:
        self.journal = journal
        self.responses_call = responses_call
        self.history = history
        self.admitted = admitted
        self.response_store = response_store
        self._conversation_lock = conversation_lock
        self.writer: ResponsesWriter = responses_call.create_writer(admitted.header)
        self._completed: StoredResponse | None = None
        self._sampled_ids: tuple[int, ...] = ()

    @property
    def header(self) -> Header:
        return self.admitted.header

    @property
    def batches(self) -> BatchStream:
        return self.admitted.run.batches

    def store_at_end(self, *, keeps_history: bool) -> None:
        """Store the response before its last event, or after a failure that follows the
        first event.

        keeps_history: whether `next_history` will be read.
        """
        # Otherwise nothing needs the complete response, so it need not be collected.
        if self.response_store is not None or self._conversation_lock is not None or keeps_history:
            self.batches.add_stage(_TurnEnd(self))

    @cached_property
    def _own_items(self) -> tuple[bytes, ...]:
        return render_own_items(self.responses_call, self.header.id)

    @property
    def next_history(self) -> ResponseHistory | None:
        """The history for the next turn; None until this turn has completed."""
        if self._completed is None:
            return None
        output = self._completed.summarize().list_output()
        return ResponseHistory(
            (*self.history.items, *self._own_items, *output),
            self.header.id,
            is_stored=self.response_store is not None,
            sampled_turns=(*self.history.sampled_turns, self._sampled_ids)
            if self._sampled_ids
            else self.history.sampled_turns,
        )

    def build_stored(self, response_object: bytes) -> StoredResponse:
        """Build the record body of the response.

        response_object: the complete JSON object.
        """
        history = self.history
        # History that is not in the store must be stored with this turn, or the turn
        # could not be continued.
        preceding = history.items if history.id is not None and not history.is_stored else ()
        return StoredResponse(
            object=Raw(response_object),
            input=to_raw(self._own_items),
            before=to_raw(preceding),
            conversation=self.responses_call.conversation,
            upto=history.last_position,
            sampled_ids=self._sampled_ids,
        )

    async def store(self, reply: Reply) -> None:
        """Store the complete response."""
        self.record_sampled_ids(reply)
        stored = self.build_stored(self.writer.render_full(reply))
        if self.response_store is not None:
            await self.response_store.save(self, stored)
        # Set after the response has been stored, so that the next turn never continues
        # an unstored one.
        self._completed = stored

    def record_sampled_ids(self, reply: Reply) -> None:
        """Record the sampled token ids if the engine reports them."""
        if self.admitted.tool_loop is not None:
            self._sampled_ids = self.admitted.tool_loop.sampled_ids
            return
        prompt_ids = self.admitted.run.find_resume_ids()
        tokens = reply.choices[0].tokens
        self._sampled_ids = (
            () if prompt_ids is None else (*prompt_ids, *(token.id for token in tokens))
        )

    async def store_failure(self, error: DragomanError) -> None:
        """Store a failed response. A failure before the first event is an HTTP error,
        without a response to store.
        """
        if self.response_store is None or not self.writer.has_started:
            return
        try:
            await self.response_store.save(
                self, self.build_stored(self.writer.render_failure(error))
            )
        except DragomanError:
            # The client gets the error of the response itself; this one is only logged,
            # for the operator.
            log.warning("a failed response could not be stored")

    def release_conversation(self) -> None:
        if self._conversation_lock is not None:
            self._conversation_lock.release()


class _TurnEnd(ReplyPersistence):
    """Stores the response of a turn, complete or failed, and ends the turn."""

    __slots__ = ("_turn",)

    def __init__(self, turn: ResponseTurn) -> None:
        super().__init__(turn.store)
        self._turn = turn

    async def fail(self, error: Exception) -> Exception:
        failure = error if isinstance(error, DragomanError) else wrap_unexpected_error(error)
        await self._turn.store_failure(failure)
        return failure

    def close(self, _: BaseException | None, /) -> None:
        self._turn.release_conversation()


class ResumedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What another process has stored of a response that this one continues.

    last_position: as in `ResponseHistory`.
    lists: the tools that servers have listed for it.
    """

    id: str
    created: int
    last_position: int | None
    lists: tuple[ToolList, ...]
    journal: ToolJournal


class ResponseStore:
    """Stores one owner's responses."""

    def __init__(self, store: Store, owner: str) -> None:
        self.store = store
        self._owner = owner

    def build_key(self, turn: ResponseTurn) -> Key:
        return Key(self._owner, RESPONSE_KIND, turn.header.id)

    def find_parent(self, turn: ResponseTurn) -> str | None:
        return turn.history.id if turn.history.is_stored else None

    async def save(self, turn: ResponseTurn, stored: StoredResponse) -> None:
        """Store the response and its conversation items.

        Raises:
            StoreUnavailable: the store failed.
            NotFound, Conflict: the conversation was deleted or changed meanwhile.
        """
        state = stored.summarize().status
        put = Put(
            self.build_key(turn),
            turn.header.created,
            stored.encode(),
            state=state,
            parent=self.find_parent(turn),
        )
        await self.commit(put, *self.build_conversation_changes(stored, state))

    def build_conversation_changes(self, stored: StoredResponse, state: str) -> tuple[Change, ...]:
        """Build the changes that add the response's items to its conversation; none if
        it failed.
        """
        if stored.conversation is None or state == "failed":
            return ()
        items = tuple(Item(row, read_item_id(row)) for row in stored.list_items())
        return (
            (Append(Key(self._owner, CONVERSATION_KIND, stored.conversation), ITEMS_SERIES, items),)
            if items
            else ()
        )

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
                f"Conversation {abbreviate(id)} received an item with the same id in the meantime.",
                param="input",
            ) from None


async def open_turn(
    context: RequestContext,
    responses_call: ResponsesCall,
    conversation_locks: ConversationLocks,
    *,
    local_history: ResponseHistory | None = None,
    resumed: ResumedResponse | None = None,
) -> ResponseTurn:
    """Load the history and admit the call; return the turn, ready to iterate.

    local_history: the last turn on this WebSocket.
    resumed: what another process has stored of the response.

    Raises:
        RequestError: the request is invalid.
    """
    service = context.service
    owner = context.caller.owner
    response_store = (
        None
        if service.store is None or responses_call.store is False
        else ResponseStore(service.store, owner)
    )
    warnings = responses_call.call.warnings
    if response_store is None:
        responses_call = responses_call.with_echo(
            msgspec.structs.replace(responses_call.echo, store=False)
        )
        warnings += ("store: the response is not stored",) if responses_call.store else ()
    elif responses_call.id.requested is not None:
        # Clients must not choose the id of a stored response, because it could be
        # guessed.
        responses_call = msgspec.structs.replace(
            responses_call, id=ResponseId(responses_call.id.prefix, None)
        )
        warnings += ("request_id is ignored: the server assigns the id of a stored response",)
    call = msgspec.structs.replace(responses_call.call, warnings=warnings)
    responses_call = msgspec.structs.replace(responses_call, call=call)
    header = responses_call.id.apply_to(build_header(context, responses_call.call))
    if resumed is not None:
        header = msgspec.structs.replace(header, id=resumed.id, created=resumed.created)
    # Locked before the history is read, so that no other response is appended before
    # this one.
    conversation_lock = conversation_locks.acquire(owner, responses_call.conversation)
    try:
        responses_call, history = await prepend_history(
            context, responses_call, local_history=local_history, resumed=resumed
        )
        journal: ToolJournal | None = None
        if responses_call.tools is not None:
            lists = () if resumed is None else resumed.lists
            responses_call = await attach_tools(
                context, responses_call, responses_call.tools, lists
            )
            if responses_call.durable_body is not None:
                journal = ToolJournal() if resumed is None else resumed.journal
        return ResponseTurn(
            responses_call,
            history,
            await admit_call(context, responses_call.call, header, journal),
            response_store,
            conversation_lock,
            journal,
        )
    # Also after a disconnect, which cancels the task: otherwise the conversation would
    # stay locked.
    except BaseException:
        if conversation_lock is not None:
            conversation_lock.release()
        raise


async def attach_tools(
    context: RequestContext,
    responses_call: ResponsesCall,
    tools: RequestedTools,
    lists: tuple[ToolList, ...] = (),
) -> ResponsesCall:
    """Return the call with the tools of its MCP servers. Servers list them now, unless
    the history or `lists` has their lists.

    Raises:
        RequestError: a server cannot be used here.
        ClientGone: the client has disconnected.
    """
    listed = {tool_list.server for tool_list in lists}
    servers = tuple(server for server in tools.unlisted if server.label not in listed)
    check_tool_caller(context, tuple(tools.plan.servers.values()))
    if context.service.tool_servers is None:
        servers = tuple(tools.plan.servers.values())
    new = await list_requested_tools(context, servers) if servers else ()
    return responses_call.with_tool_lists((*lists, *new))


async def prepend_history(
    context: RequestContext,
    responses_call: ResponsesCall,
    *,
    local_history: ResponseHistory | None = None,
    resumed: ResumedResponse | None = None,
) -> tuple[ResponsesCall, ResponseHistory]:
    """Return the call with its history prepended, and the history."""
    store = context.service.store
    owner = context.caller.owner
    history = await load_history(store, owner, responses_call, local_history)
    if resumed is not None and responses_call.conversation is not None:
        history = history.cut_after(resumed.last_position)
    input = await resolve_references(store, owner, responses_call.input, history)

    def prepend() -> ResponsesCall:
        history_items = read_stored_items(history.items)
        # Clients may send items of the history again; ids in a conversation are unique,
        # so these get new ones.
        ids = {item.id for item in history_items}
        new_items = tuple(
            msgspec.structs.replace(item, id=None) if item.id in ids else item for item in input
        )
        return responses_call.with_history(history_items, new_items, history.sampled_turns)

    if history.items or input is not responses_call.input:
        # In a thread if it is long, because parsing it would block the event loop like
        # parsing a large body.
        is_large = sum(map(len, history.items)) > LARGE_BODY
        responses_call = await anyio.to_thread.run_sync(prepend) if is_large else prepend()
    return responses_call, history


def render_own_items(responses_call: ResponsesCall, response_id: str) -> tuple[bytes, ...]:
    """Render the call's own input items for the store. Ids that the client did not send
    derive from the response's.
    """
    return tuple(row for _, row in assign_ids(responses_call.input, response_id))
