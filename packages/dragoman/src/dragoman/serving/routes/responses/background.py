"""Background responses, generated while no client waits.

Every event is stored before a client receives it. So any process can resume the stream,
and no delivered event is lost when a process dies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress

import msgspec
from msgspec import Raw

from ....core.errors import DragomanError, EngineError, RateLimited
from ....core.events import ChoiceFinished, Event, Finished, Started
from ....core.fair_shares import compute_allowance
from ....core.reply import ReplyBuilder
from ....dialects.responses.stored_events import StoredEvent, encode_events, read_events
from ....dialects.responses.stored_response import RUNNING_STATUSES, finalize, read_stored_response
from ....pipeline.engine_calls import translate_engine_exception
from ....store import (
    UNCLAIMED_RUN,
    Append,
    Change,
    CommitConflict,
    Item,
    Key,
    Put,
    Record,
    Replace,
    Store,
    StoreUnavailable,
)
from ...responder import log, wrap_unexpected_error
from ...tool_journal import Requested, Step, StoredStep
from .history import RESPONSE_KIND, build_no_such_response_error, load_entries
from .turn import ResponseStore, ResponseTurn

EVENTS_SERIES = "events"
"""The series of a response's events; each entry holds the events that were stored
together.
"""

STEPS_SERIES = "steps"
"""The series of the steps of a response that can be continued, see `tool_journal`."""

TICK_INTERVAL = 1.0
"""Seconds between two checks for cancellation or deletion by other processes."""
LAPSE_TICKS = 2
"""Ticks between two searches for runs of processes that have died."""
POLL_INTERVAL = 0.25
LOCAL_POLL_INTERVAL = 5.0
"""Seconds between two reads of a streaming client's events: for runs of other
processes, and for runs of this process, which notify the reader anyway.
"""


Resume = Callable[[Record], Awaitable[bool]]
"""Continues a response whose process has died; returns false if that is not possible."""


class BackgroundRuns:
    """All background runs of this process.

    limit: maximum number of concurrent runs, of which each owner has a share.
    list_owners: lists the owners that share the limit.
    """

    def __init__(
        self, store: Store, limit: int, list_owners: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._store = store
        self._limit = limit
        self._list_owners = list_owners
        self._runs: dict[Key, asyncio.Task[None]] = {}
        self._n_held: Counter[str] = Counter()
        """Runs of each owner, including those that are being stored."""
        self._new_events: dict[Key, asyncio.Event] = {}
        self._unfinalized: dict[Key, EngineError] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._durable: set[Key] = set()
        self.resume: Resume | None = None

    async def open(self) -> None:
        """Finalize runs of terminated processes and start the supervision."""
        await self.finalize_abandoned()
        self._watcher = asyncio.create_task(self._watch_runs())

    async def close(self) -> None:
        """Stop all runs. Those that can be continued are left to other processes; the
        others are marked as failed, by another process if the store is unavailable.
        """
        # The watcher first, because it would finalize the stopped runs with another
        # error.
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        keys = list(self._runs)
        durable = self._durable & set(keys)
        await self._stop(*keys)
        with suppress(StoreUnavailable):
            for key in keys:
                if key in durable:
                    await self._release(key)
                    continue
                await self.finalize(
                    key, EngineError("The server was stopped before the response was finished.")
                )

    def check_limit(self, owner: str) -> None:
        """Raise RateLimited if the limit or the owner's share of it is reached."""
        allowance = compute_allowance(self._limit, owner, self._list_owners(), self._n_held)
        if self._n_held[owner] >= allowance:
            raise RateLimited(
                f"There are already {self._n_held.total()} background responses, "
                f"{self._n_held[owner]} of them yours; retry when one has ended."
            )

    async def start(
        self,
        put: Put,
        events: Sequence[StoredEvent],
        run: Coroutine[object, object, None],
        *progress: Append,
    ) -> None:
        """Store a response and start its run.

        put: stores the response's record.
        events: the first events.
        progress: the first step of a response that can be continued.
        run: generates the response; started after the record and the events are stored.

        Raises:
            RateLimited: the limit or the owner's share of it is reached.
        """
        is_held = False
        try:
            self.check_limit(put.key.owner)
            # Before the commit: others start meanwhile.
            self._n_held[put.key.owner] += 1
            is_held = True
            # In one commit, so that every stored response can be streamed from its
            # first event.
            await self._store.commit(put, build_event_append(put.key, events), *progress)
        except BaseException:
            # A coroutine that is never started would keep the admitted call until it is
            # collected, and then warn.
            run.close()
            self._n_held[put.key.owner] -= is_held
            raise
        self._start_task(put.key, run, is_durable=bool(progress))

    def adopt(self, key: Key, run: Coroutine[object, object, None]) -> None:
        """Start the run of a response that another process has begun. The limit does not
        apply: it was accepted.
        """
        self._n_held[key.owner] += 1
        self._start_task(key, run, is_durable=True)

    def _start_task(
        self, key: Key, run: Coroutine[object, object, None], *, is_durable: bool
    ) -> None:
        task = asyncio.create_task(run)
        self._runs[key] = task
        if is_durable:
            self._durable.add(key)
        task.add_done_callback(lambda done: self._on_run_done(key, done))

    def _on_run_done(self, key: Key, task: asyncio.Task[None]) -> None:
        """Schedule the finalization of a failed or cancelled run for the next tick; no
        effect if it is finalized.
        """
        self._runs.pop(key, None)
        self._durable.discard(key)
        self._n_held[key.owner] -= 1
        if task.cancelled():
            error = None
        elif (error := task.exception()) is None:
            return
        else:
            log.error("background response %s failed", key.id, exc_info=error)
        # Not finalized here, because a task's callback cannot await the store.
        self._unfinalized[key] = EngineError(
            "The server failed while it generated this response; see its log."
        )

    async def cancel(self, record: Record) -> Record | None:
        """Cancel a run; return its updated record, or None if it was deleted meanwhile.

        No effect on a response that has ended.
        """
        # In the store first, so that a run in another process stops too, see `tick`.
        await self.finalize(record.key, None)
        await self._stop(record.key)
        return await self._store.get(record.key)

    async def discard(self, key: Key) -> None:
        """Stop the run of a deleted response."""
        await self._stop(key)
        self.notify(key)

    async def follow(self, key: Key, starting_after: int) -> AsyncGenerator[list[StoredEvent]]:
        """Yield the stored events numbered above `starting_after`, then new ones as
        they are stored.

        Raises:
            NotFound: the response is deleted meanwhile.
        """
        position: int | None = None
        try:
            while True:
                # Registered before the read, so that no event is missed.
                new_events = self._new_events.setdefault(key, asyncio.Event())
                batch = await self._store.load_entries(
                    key, EVENTS_SERIES, after=position, limit=100
                )
                for entry in batch:
                    position = entry.position
                    events = read_events(entry.body)
                    if new := [event for event in events if event.number > starting_after]:
                        yield new
                    if events[-1].is_terminal:
                        return
                if not batch:
                    await self._wait_for_events(key, new_events)
        finally:
            # Removes the asyncio.Event; for runs of other processes nothing else does.
            # Other followers create new ones.
            self.notify(key)

    async def _wait_for_events(self, key: Key, new_events: asyncio.Event) -> None:
        if await self._store.get(key) is None:
            raise build_no_such_response_error(key.id)
        # Python 3.11's `wait_for` can swallow a cancellation that coincides with the
        # result.
        with suppress(TimeoutError):
            async with asyncio.timeout(LOCAL_POLL_INTERVAL if key in self._runs else POLL_INTERVAL):
                await new_events.wait()

    def notify(self, key: Key) -> None:
        """Wake followers after events were stored."""
        if new_events := self._new_events.pop(key, None):
            new_events.set()

    def mark_unfinalized(self, key: Key) -> None:
        """Retry a finalization that could not be stored at the next tick."""
        self._unfinalized[key] = EngineError("The response could not be stored.")

    async def finalize_abandoned(self) -> None:
        while records := await self._store.list_abandoned(RESPONSE_KIND):
            for record in records:
                if self.resume is not None and await self.resume(record):
                    continue
                await finalize_run(
                    self._store,
                    record,
                    EngineError(
                        "The server stopped while it generated this response. Responses are "
                        "continued only if this server calls their tools, without "
                        "'authorization' and 'headers', which are not stored, and until "
                        "five processes in a row have died without progress."
                    ),
                )

    async def tick(self) -> None:
        """Stop runs that other processes have cancelled or deleted, and retry failed
        finalizations.
        """
        # Copies, because runs can end during the loop.
        for key in list(self._runs):
            record = await self._store.get(key)
            if record is None or record.state not in RUNNING_STATUSES:
                await self._stop(key)
        for key, error in list(self._unfinalized.items()):
            await self.finalize(key, error)
            self._unfinalized.pop(key, None)

    async def _watch_runs(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            ticks += 1
            try:
                await self.tick()
                if ticks % LAPSE_TICKS == 0:
                    await self.finalize_abandoned()
            except StoreUnavailable as error:
                log.warning("background responses cannot be monitored: %s", error)

    async def finalize(self, key: Key, error: DragomanError | None) -> None:
        """Finalize the run as `finalize_run` does, and wake its followers."""
        record = await self._store.get(key)
        if record is not None:
            await finalize_run(self._store, record, error)
            self.notify(key)

    async def _release(self, key: Key) -> None:
        """Let another process continue a response."""
        record = await self._store.get(key)
        if record is None or record.state not in RUNNING_STATUSES:
            return
        with suppress(CommitConflict):
            await self._store.commit(
                Replace(key, record.state, record.body, UNCLAIMED_RUN, version=record.version)
            )

    async def _stop(self, *keys: Key) -> None:
        tasks = [task for key in keys if (task := self._runs.get(key)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def finalize_run(store: Store, record: Record, error: DragomanError | None) -> None:
    """Finalize a run: as failed with `error`, or as cancelled if `error` is None. No
    effect on an ended response.

    The run may add events concurrently: event numbers are unique, so one of two
    conflicting appends is rejected.
    """
    key = record.key
    while record.state in RUNNING_STATUSES:
        entries = await load_entries(store, key, EVENTS_SERIES)
        stored = read_stored_response(record.body)
        final = finalize(
            stored, [event for entry in entries for event in read_events(entry.body)], error
        )
        body = stored.with_object(final.response).encode()
        # Conditional on the version, because the run may store its own end
        # concurrently.
        replace = Replace(key, final.status, body, states=RUNNING_STATUSES, version=record.version)
        with suppress(CommitConflict):
            await store.commit(
                replace, Append(key, EVENTS_SERIES, (_build_events_item(final.events),))
            )
            return
        current = await store.get(key)
        if current is None:
            return
        # The run or another process has changed the record: check its new state.
        record = current


def build_event_append(key: Key, events: Sequence[StoredEvent]) -> Append:
    """Build an append of events. It conflicts if the response has ended or an event
    with the same number exists.
    """
    return Append(key, EVENTS_SERIES, (_build_events_item(events),), states=RUNNING_STATUSES)


def _build_events_item(events: Sequence[StoredEvent]) -> Item:
    """Build an entry with these events. Its id, unique in the series, is the number of
    the first event.
    """
    return Item(encode_events(events), str(events[0].number))


def build_step_append(key: Key, step: Step, id: str, n_events: int = 0) -> Append:
    """Build an append of a step. It conflicts if the response has ended, or another
    process has stored the same step.
    """
    item = Item(msgspec.json.encode(StoredStep(step, n_events)), id)
    return Append(key, STEPS_SERIES, (item,), states=RUNNING_STATUSES)


async def start_run(background: BackgroundRuns, turn: ResponseTurn) -> bytes:
    """Store and start a background response; return its object.

    Raises:
        RateLimited: the limit is reached.
    """
    response_store = turn.response_store
    writer = turn.writer
    assert response_store is not None, (
        "the reader refuses a background response that is not to be stored"
    )
    key = response_store.build_key(turn)
    stored = turn.build_stored(writer.render_queued())
    parent = response_store.find_parent(turn)
    run = response_store.store.run
    put = Put(key, turn.header.created, stored.encode(), state="queued", parent=parent, run=run)
    writer.start_recording()
    writer.render_queued_events()
    progress: tuple[Append, ...] = ()
    if turn.journal is not None and (body := turn.responses_call.durable_body) is not None:
        progress = (build_step_append(key, Requested(Raw(body)), "requested"),)
    await background.start(
        put, writer.take_events(), BackgroundRun(background, key, turn, response_store)(), *progress
    )
    return bytes(stored.object)


class BackgroundRun:
    """A running background response. Events that arrive during a write to the store are
    stored by the next write.
    """

    def __init__(
        self,
        background: BackgroundRuns,
        key: Key,
        turn: ResponseTurn,
        response_store: ResponseStore,
    ) -> None:
        self._background = background
        self._key = key
        self._turn = turn
        self._response_store = response_store
        self._pending: list[StoredEvent] = []
        self._is_start_pending = False
        self._store_task: asyncio.Task[None] | None = None
        self._step_lock = asyncio.Lock()
        if turn.journal is not None:
            turn.journal.commit = self._commit_step

    async def __call__(self) -> None:
        try:
            await self._generate()
        except CommitConflict:
            """Another request has cancelled or deleted the response, and has already
            stored that.
            """
        except DragomanError as error:
            await self._fail(error)
        except BaseException as error:
            failure = translate_engine_exception(error, asyncio.current_task())
            if not isinstance(failure, Exception):
                raise
            await self._fail(
                failure if isinstance(failure, DragomanError) else wrap_unexpected_error(failure)
            )
        finally:
            self._turn.release_conversation()
            if self._store_task is not None:
                self._store_task.cancel()
                await asyncio.gather(self._store_task, return_exceptions=True)

    async def _generate(self) -> None:
        writer = self._turn.writer
        builder = ReplyBuilder()
        is_ending = False
        # Closing the batches cancels the generation, also if an event cannot be stored.
        async with aclosing(self._turn.batches) as batches:
            async for batch in batches:
                for event in batch:
                    builder.feed(event)
                # Both are stored together with the response, see `_finish`: a process
                # that continues a complete answer would generate its last turn again.
                is_ending |= any(isinstance(event, ChoiceFinished | Finished) for event in batch)
                if is_ending:
                    await self._wait_for_store()
                *earlier, last = batch
                self._append_events(earlier)
                if isinstance(last, Finished):
                    reply = builder.build()
                    self._turn.record_sampled_ids(reply)
                    await self._finish(writer.render_full(reply), last)
                    return
                self._append_events([last])
                if is_ending:
                    continue
                if self._store_task is not None and self._store_task.done():
                    # Raises the error of the last write: a run whose events cannot be
                    # stored must stop generating.
                    self._store_task.result()
                    self._store_task = None
                # One write at a time: events that arrive meanwhile wait for the next
                # write.
                if self._store_task is None:
                    self._store_task = asyncio.create_task(self._store())

    def _append_events(self, events: list[Event]) -> None:
        self._is_start_pending |= any(isinstance(event, Started) for event in events)
        for event in events:
            self._turn.writer.feed(event)
        self._pending += self._turn.writer.take_events()

    async def _fail(self, error: DragomanError) -> None:
        """Store the pending events if possible, then finalize the response as failed."""
        try:
            with suppress(StoreUnavailable, CommitConflict):
                await self._wait_for_store()
                await self._store()
            await self._background.finalize(self._key, error)
        except StoreUnavailable as store_error:
            log.warning(
                "the end of background response %s could not be stored: %s",
                self._key.id,
                store_error,
            )
            self._background.mark_unfinalized(self._key)

    async def _store(self) -> None:
        while self._pending:
            await self._response_store.commit(*self._take_pending())
            self._background.notify(self._key)

    def _take_pending(self) -> list[Change]:
        """Return the changes that store the pending events."""
        events = self._pending
        self._pending = []
        changes: list[Change] = [build_event_append(self._key, events)] if events else []
        if self._is_start_pending:
            self._is_start_pending = False
            running = self._turn.build_stored(self._turn.writer.render_in_progress()).encode()
            run = self._response_store.store.run
            # In one commit with the first events: a client that sees them must not
            # read the response as still queued.
            changes.insert(
                0, Replace(self._key, "in_progress", running, run=run, states=RUNNING_STATUSES)
            )
        return changes

    async def _commit_step(self, step: Step, id: str, *changes: Change) -> None:
        """Implements `CommitStep`."""
        await self._wait_for_store()
        # The calls of a turn are made at the same time, and events are stored in order.
        async with self._step_lock:
            append = build_step_append(self._key, step, id, self._turn.writer.n_events)
            await self._response_store.commit(*changes, *self._take_pending(), append)
        self._background.notify(self._key)

    async def _finish(self, response_object: bytes, last: Finished) -> None:
        """Store the response, its last events and its conversation items in one commit."""
        # A pending write has earlier events, and events must be stored in order.
        await self._wait_for_store()
        stored = self._turn.build_stored(response_object)
        state = stored.summarize().status
        self._turn.writer.feed(last)
        await self._response_store.commit(
            build_event_append(self._key, [*self._pending, *self._turn.writer.take_events()]),
            Replace(self._key, state, stored.encode(), states=RUNNING_STATUSES),
            *self._response_store.build_conversation_changes(stored, state),
        )
        self._background.notify(self._key)

    async def _wait_for_store(self) -> None:
        if self._store_task is not None:
            await self._store_task
