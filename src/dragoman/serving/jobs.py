"""Work that outlives its request: taken from the store by one process at a time, and by another if that one dies.

Knows no kind of job: what its tasks are and what becomes of their results is told by a `Job`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..store import UNCLAIMED_RUN, Change, CommitConflict, Delete, Key, Record, Replace, Store
from .auth import Caller
from .internal_client import InternalClient, InternalResponse
from .service import Service

log = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two looks at what other processes have left, and at whether a job was cancelled meanwhile."""
RETRY_DELAY = 0.5
"""Seconds before what found no room is tried again; longer each time, up to LONGEST_PAUSE."""
MAX_RETRY_DELAY = 30.0
_OVERLOADED_STATUSES = frozenset({429, 503, 529})


class JobTask(Struct, frozen=True):
    """One request of a job. id: unique in the job. path: of the route that answers it."""

    id: str
    path: str
    body: bytes


class Job(Protocol):
    """One record in work."""

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str: ...

    def pending_tasks(self) -> AsyncGenerator[JobTask]:
        """Those that are still to be done."""
        ...

    async def store_result(self, task: JobTask, response: InternalResponse) -> None:
        """Write the result down. Raises Refused where the job is no longer to go on."""
        ...

    async def can_continue(self) -> bool:
        """Whether it has been neither cancelled nor overtaken by its time."""
        ...


class RecordLease:
    """A record in this process's hands. Whatever it writes says what it believes to be there, so that it never works
    against another process, or against a client that has cancelled it.
    """

    def __init__(self, store: Store, record: Record) -> None:
        self._store, self.record = store, record

    @property
    def key(self) -> Key:
        return self.record.key

    async def commit(self, state: str, body: bytes, *changes: Change, release: bool = False) -> None:
        """done: nobody works on it any more. Raises Refused where the record is not as it was."""
        run = None if release else self._store.run
        await self._store.commit(*changes, Replace(self.key, state, body, run, version=self.record.version))
        version = self.record.version + 1
        self.record = msgspec.structs.replace(self.record, state=state, body=body, run=run, version=version)

    async def reload(self) -> None:
        """Raises Refused if it is gone, or in another process's hands."""
        record = await self._store.get(self.key)
        if record is None or record.run != self._store.run:
            raise CommitConflict(Delete(self.key), None if record is None else record.state)
        self.record = record


class JobStopped(Exception):
    """The job is not to go on."""


class JobRunner:
    """The jobs of one kind that this process works on. room: for the tasks of all jobs. most: jobs at a time."""

    def __init__(
        self,
        service: Service,
        store: Store,
        client: InternalClient,
        kind: str,
        slots: asyncio.Semaphore,
        max_jobs: int = 4,
    ) -> None:
        self._service, self._store, self._client, self._kind = service, store, client, kind
        self._slots, self._max_jobs = slots, max_jobs

    async def run(self, process: Callable[[Record, JobRunner], Awaitable[None]]) -> None:
        """Take what nobody works on, again and again, until it is cancelled: what runs then is left to others."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                running = {task for task in running if not task.done()}
                for record in await self._claim_records(self._max_jobs - len(running)):
                    running.add(asyncio.create_task(self._run_guarded(process, record)))
                await _wait_for_event(self._service.jobs_available, POLL_INTERVAL)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def run_job(self, job: Job) -> None:
        """All tasks of a job, unless it is stopped before they are done."""
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(_raise_when_stopped(job))
                await self._run_tasks(job)
                watcher.cancel()
        except* (JobStopped, CommitConflict):
            log.info("%s %s was stopped", self._kind, job.id)

    async def _run_tasks(self, job: Job) -> None:
        async with asyncio.TaskGroup() as group, aclosing(job.pending_tasks()) as tasks:
            async for task in tasks:
                await self._slots.acquire()
                running = group.create_task(self._run_task(job, task))
                # Not in the task itself: one that is cancelled before it has begun runs nothing.
                running.add_done_callback(lambda _: self._slots.release())

    async def _run_task(self, job: Job, task: JobTask) -> None:
        """Where there is no room now it waits, for nobody waits for it."""
        delay = RETRY_DELAY
        while True:
            response = await self._client(Caller(job.owner), task.path, task.body)
            if response.status not in _OVERLOADED_STATUSES and (response.status < 500 or self._is_any_engine_ready()):
                break
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY_DELAY)
        await job.store_result(task, response)

    def _is_any_engine_ready(self) -> bool:
        """A server that is stopping answers with errors that are not the requests' own."""
        return any(engine.health().ready for model in self._service.models for engine in model.engines)

    async def _claim_records(self, limit: int) -> list[Record]:
        """Of several processes that want one, one gets it."""
        claimed: list[Record] = []
        if limit <= 0:
            return claimed
        try:
            for record in await self._store.list_abandoned(self._kind, limit):
                claim = Replace(record.key, record.state, record.body, self._store.run, version=record.version)
                try:
                    await self._store.commit(claim)
                except CommitConflict:
                    continue
                current = await self._store.get(record.key)
                claimed += [current] if current is not None else []
        except DragomanError:
            # The store has said why in the log; the next look may find it well again.
            pass
        return claimed

    async def _run_guarded(self, process: Callable[[Record, JobRunner], Awaitable[None]], record: Record) -> None:
        """A job that fails for a reason of ours is let go of, and tried again by whoever looks next."""
        try:
            await process(record, self)
        except CommitConflict:
            log.info("%s %s was changed by another process", self._kind, record.key.id)
            await self._release(record.key)
        except Exception:
            log.exception("%s %s failed and will be retried", self._kind, record.key.id)
            await asyncio.sleep(MAX_RETRY_DELAY)
            await self._release(record.key)

    async def _release(self, key: Key) -> None:
        """If it is still ours. Until that is written down nobody else would take it."""
        while True:
            try:
                current = await self._store.get(key)
                if current is not None and current.run == self._store.run:
                    await self._store.commit(
                        Replace(key, current.state, current.body, UNCLAIMED_RUN, version=current.version)
                    )
                return
            except CommitConflict:
                continue
            except DragomanError:
                await asyncio.sleep(MAX_RETRY_DELAY)


async def _raise_when_stopped(job: Job) -> None:
    # Another process may have cancelled it: there is no event.
    while await job.can_continue():  # noqa: ASYNC110
        await asyncio.sleep(POLL_INTERVAL)
    raise JobStopped


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()
