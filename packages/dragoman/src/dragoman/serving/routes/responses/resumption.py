"""Continues background responses whose process has died, from their stored steps."""

from __future__ import annotations

import asyncio
from itertools import takewhile

import msgspec
from msgspec import Raw, Struct
from starlette.datastructures import Headers
from starlette.types import Message

from ....core.errors import BudgetExhausted, DragomanError, Overloaded, RateLimited, RequestError
from ....core.server_tools import ToolList
from ....dialects.interfaces import ReaderOptions
from ....dialects.responses import ResponsesCall, read_responses
from ....dialects.responses.errors import RESPONSES_ERRORS
from ....dialects.responses.mcp_tools import read_listed_tools
from ....dialects.responses.stored_events import StoredEvent, read_events
from ....dialects.responses.stored_response import StoredResponse, read_stored_response
from ....store import CommitConflict, Key, Record, Replace, Store
from ...auth import Caller
from ...body_memory import BodyMemoryShare
from ...call_reading import parse_body
from ...disconnect import ignore_disconnect
from ...http_request import HttpRequest
from ...responder import log
from ...service import Service, restrict_service
from ...tool_journal import Requested, Resumed, StoredStep, ToolJournal
from .background import (
    EVENTS_SERIES,
    STEPS_SERIES,
    TICK_INTERVAL,
    BackgroundRun,
    BackgroundRuns,
    build_step_append,
)
from .conversation_locks import ConversationLocks
from .history import load_entries
from .turn import ResponseTurn, ResumedResponse, open_turn

MAX_ATTEMPTS = 5
"""Processes that may die in a row without progress of a response: it may be the cause."""


class Resumption:
    """Implements `background.Resume`."""

    def __init__(
        self,
        service: Service,
        store: Store,
        background: BackgroundRuns,
        conversation_locks: ConversationLocks,
    ) -> None:
        self._service = service
        self._store = store
        self._background = background
        self._conversation_locks = conversation_locks

    async def __call__(self, record: Record) -> bool:
        entries = await load_entries(self._store, record.key, STEPS_SERIES)
        try:
            steps = [msgspec.json.decode(entry.body, type=StoredStep) for entry in entries]
        except msgspec.MsgspecError as error:
            # Of another version, for example. It must not prevent the start.
            log.warning("response %s cannot be continued: %s", record.key.id, error)
            return False
        attempts = list(takewhile(lambda each: isinstance(each.step, Resumed), reversed(steps)))
        if not steps or len(attempts) >= MAX_ATTEMPTS:
            return False
        requested = steps[0].step
        assert isinstance(requested, Requested)
        claim = Replace(
            record.key, record.state, record.body, self._store.run, version=record.version
        )
        try:
            await self._store.commit(
                claim, build_step_append(record.key, Resumed(), f"resumed_{len(steps)}")
            )
        except CommitConflict:
            # Another process continues it, or the client has cancelled or deleted it.
            return True
        self._background.adopt(record.key, self._run(record, requested, steps))
        return True

    async def _run(self, record: Record, requested: Requested, steps: list[StoredStep]) -> None:
        stored = read_stored_response(record.body)
        entries = await load_entries(self._store, record.key, EVENTS_SERIES)
        events = [event for entry in entries for event in read_events(entry.body)]
        journal = ToolJournal(
            steps,
            len(events),
            has_started=any(event.type == "response.in_progress" for event in events),
        )
        resumed = ResumedResponse(
            id=record.key.id,
            created=record.created,
            last_position=stored.upto,
            lists=_find_lists(events),
            journal=journal,
        )
        try:
            turn = await self._open_turn(record.key, _build_body(requested, stored), resumed)
        except DragomanError as error:
            await self._background.finalize(record.key, error)
            return
        loop = turn.admitted.tool_loop
        assert turn.response_store is not None
        assert loop is not None
        turn.writer.start_recording()
        turn.writer.restore(events, loop.list_sent_calls(), loop.find_open_part())
        await BackgroundRun(self._background, record.key, turn, turn.response_store)()

    async def _open_turn(self, key: Key, body: bytes, resumed: ResumedResponse) -> ResponseTurn:
        context = _build_context(self._service, key.owner)
        now = self._service.clock.now

        def read(data: bytes, options: ReaderOptions) -> ResponsesCall:
            return read_responses(data, options, now=lambda: int(now()))

        responses_call = await parse_body(context, body, read)
        while True:
            try:
                return await open_turn(
                    context, responses_call, self._conversation_locks, resumed=resumed
                )
            except DragomanError as error:
                if not _is_temporary(error):
                    raise
            await asyncio.sleep(TICK_INTERVAL)


def _is_temporary(error: DragomanError) -> bool:
    """Whether the response only has to wait: it was accepted before, but many can be
    continued at the same time, and another can have begun in its conversation.
    """
    if isinstance(error, RateLimited | Overloaded):
        return not isinstance(error, BudgetExhausted)
    return isinstance(error, RequestError) and error.code == "conversation_locked"


def _build_body(requested: Requested, stored: StoredResponse) -> bytes:
    fields = msgspec.json.decode(requested.body, type=dict[str, Raw])
    return msgspec.json.encode({**fields, "input": stored.input})


class _Item(Struct, frozen=True):
    type: str
    server_label: str = ""
    tools: Raw = Raw(b"[]")
    error: Raw = Raw(b"null")


class _DoneItem(Struct, frozen=True):
    item: _Item


def _find_lists(events: list[StoredEvent]) -> tuple[ToolList, ...]:
    """Find the lists of tools that the client has got."""
    done = [
        msgspec.json.decode(event.data, type=_DoneItem).item
        for event in events
        if event.type == "response.output_item.done"
    ]
    return tuple(
        read_listed_tools(item.server_label, item.tools, item.error)
        for item in done
        if item.type == "mcp_list_tools"
    )


def _build_context(service: Service, owner: str) -> HttpRequest:
    """Build a request without a client."""
    caller = Caller(owner)
    return HttpRequest(
        restrict_service(service, caller),
        caller,
        Headers(),
        {},
        service.ids.new("req_"),
        service.clock.monotonic(),
        RESPONSES_ERRORS,
        _receive_nothing,
        ignore_disconnect,
        b"",
        "/v1/responses",
        BodyMemoryShare(service.body_budget, owner),
    )


async def _receive_nothing() -> Message:
    return await asyncio.get_running_loop().create_future()
