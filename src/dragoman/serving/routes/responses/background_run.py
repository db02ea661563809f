"""One background response: its events are stored as they are generated, see `background`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from ....core.errors import DragomanError
from ....core.events import Event, Finished, Started
from ....core.reply import ReplyBuilder
from ....dialects.responses.stored import RUNNING_STATUSES
from ....pipeline.engine_calls import contain
from ....store import Change, CommitConflict, Key, Put, Replace, StoreUnavailable
from ...streaming import log, wrap_unexpected_error
from .background import BackgroundRuns, build_event_append
from .turn import ResponseStore, ResponseTurn


async def start_run(background: BackgroundRuns, turn: ResponseTurn) -> bytes:
    """Store and start a background response; return its object.

    Raises:
        RateLimited: the limit is reached.
    """
    response_store, writer = turn.response_store, turn.writer
    assert response_store is not None, "the reader refuses a background response that is not to be stored"
    key = response_store.key(turn)
    stored = turn.build_stored(writer.render_queued())
    parent, run = response_store.parent(turn), response_store.store.run
    put = Put(key, turn.header.created, stored.encode(), state="queued", parent=parent, run=run)
    await background.start(put, writer.render_queued_events(), _BackgroundRun(background, key, turn, response_store)())
    return bytes(stored.object)


class _BackgroundRun:
    """A running background response. Events that arrive during a write to the store are stored together by the next
    one.
    """

    def __init__(self, background: BackgroundRuns, key: Key, turn: ResponseTurn, response_store: ResponseStore) -> None:
        self._background, self._key, self._turn, self._response_store = background, key, turn, response_store
        self._pending: list[bytes] = []
        self._is_start_pending = False
        self._store_task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        try:
            await self._generate()
        except CommitConflict:
            """Another request has cancelled or deleted the response, and its end is already stored."""
        except DragomanError as error:
            await self._fail(error)
        except BaseException as error:
            failure = contain(error, asyncio.current_task())
            if not isinstance(failure, Exception):
                raise
            await self._fail(failure if isinstance(failure, DragomanError) else wrap_unexpected_error(failure))
        finally:
            if self._store_task is not None:
                self._store_task.cancel()
                await asyncio.gather(self._store_task, return_exceptions=True)

    async def _generate(self) -> None:
        writer, builder = self._turn.writer, ReplyBuilder()
        async with aclosing(self._turn.admitted.run.batches) as batches:
            async for batch in batches:
                for event in batch:
                    builder.feed(event)
                # `Finished` is stored together with the response, see `_finish`.
                *earlier, last = batch
                self._append_events(earlier)
                if isinstance(last, Finished):
                    reply = builder.build()
                    self._turn.record_sampled_ids(reply)
                    response_object = writer.render_full(reply)
                    await self._finish(response_object, writer.feed(last))
                    return
                self._append_events([last])
                self._schedule_store()

    def _append_events(self, events: list[Event]) -> None:
        self._is_start_pending |= any(isinstance(event, Started) for event in events)
        self._pending += (chunk for event in events if (chunk := self._turn.writer.feed(event)))

    async def _fail(self, error: DragomanError) -> None:
        """Store the pending events if possible, then finalize the response as failed."""
        try:
            with suppress(StoreUnavailable, CommitConflict):
                await self._wait_for_store()
                await self._store()
            await self._background.finalize(self._key, error)
        except StoreUnavailable as store_error:
            log.warning("the end of background response %s could not be stored: %s", self._key.id, store_error)
            self._background.mark_unfinalized(self._key)

    def _schedule_store(self) -> None:
        store_task = self._store_task
        if store_task is not None and store_task.done():
            # Raises what the last write raised: a run whose events cannot be stored must not go on generating.
            store_task.result()
            store_task = None
        # One write at a time: events that arrive meanwhile wait for the next.
        if store_task is None:
            self._store_task = asyncio.create_task(self._store())

    async def _store(self) -> None:
        while self._pending:
            events, self._pending = b"".join(self._pending), []
            changes: list[Change] = [build_event_append(self._key, events)]
            if self._is_start_pending:
                self._is_start_pending = False
                running = self._turn.build_stored(self._turn.writer.render_in_progress()).encode()
                run = self._response_store.store.run
                # In one commit with the first events: a client that sees them must not read the response as still
                # queued.
                changes.insert(0, Replace(self._key, "in_progress", running, run=run, states=RUNNING_STATUSES))
            await self._response_store.commit(*changes)
            self._background.notify(self._key)

    async def _finish(self, response_object: bytes, last: bytes) -> None:
        """Store the response, its last events and its conversation items in one commit."""
        await self._wait_for_store()
        stored = self._turn.build_stored(response_object)
        state = stored.summarize().status
        events = b"".join((*self._pending, last))
        await self._response_store.commit(
            build_event_append(self._key, events),
            Replace(self._key, state, stored.encode(), states=RUNNING_STATUSES),
            *self._response_store.build_conversation_changes(stored, state),
        )
        self._background.notify(self._key)

    async def _wait_for_store(self) -> None:
        if self._store_task is not None:
            await self._store_task
