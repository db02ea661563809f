"""Durable jobs: work that outlives its request, claimed from the store by one process
at a time.

Independent of the kind of job, which a `Job` implements.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from msgspec import Struct

from ..core.errors import DragomanError
from ..isolation.fair_limiter import FairLimiter
from ..store import UNCLAIMED_RUN, CommitConflict, Key, Record, Replace, Store
from .auth import Caller
from .internal_client import InternalClient, InternalResponse
from .service import Service

log = logging.getLogger(__name__)

STATE_CHECK_INTERVAL = 1.0
"""Seconds between two checks for unclaimed jobs and for cancellation by other
processes.
"""
RETRY_DELAY = 0.5
"""Initial delay in seconds before an overloaded request is retried; doubles up to
MAX_RETRY_DELAY.
"""
MAX_RETRY_DELAY = 30.0
JOBS_PER_OWNER = 4
"""Concurrent jobs of one owner, so that those of others are not behind all of its jobs.
"""
CLAIMABLE = 256
"""Unclaimed jobs among which the next ones are chosen."""
_OVERLOADED_STATUSES = frozenset({429, 503, 529})


class JobTask(Struct, frozen=True):
    """One request of a job.

    id: unique in the job.
    path: the route that handles it.
    """

    id: str
    path: str
    body: bytes


class Job(Protocol):
    """A job in progress, which is one record of the store."""

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str: ...

    def pending_tasks(self) -> AsyncGenerator[JobTask]:
        """Iterate over the tasks without a result."""
        ...

    async def store_result(self, task: JobTask, response: InternalResponse) -> None:
        """Store a task's result.

        Raises:
            CommitConflict: the job must stop.
        """
        ...

    async def can_continue(self) -> bool:
        """Whether the job is neither cancelled nor expired."""
        ...


class JobStopped(Exception):
    """Raised if the job was cancelled or has expired."""


class JobRunner:
    """Runs the jobs of one kind in this process.

    kind: the kind of the jobs' records.
    slots: limits the concurrent tasks of all jobs; owners take turns.
    new_jobs: set when a job has been stored.
    max_jobs: maximum number of concurrent jobs, JOBS_PER_OWNER of each owner.
    """

    def __init__(
        self,
        service: Service,
        store: Store,
        client: InternalClient,
        kind: str,
        slots: FairLimiter,
        new_jobs: asyncio.Event,
        max_jobs: int = 64,
    ) -> None:
        self._new_jobs = new_jobs
        self._service = service
        self._store = store
        self._client = client
        self._kind = kind
        self._slots = slots
        self._max_jobs = max_jobs

    async def run(self, process: Callable[[Record, JobRunner], Awaitable[None]]) -> None:
        """Claim and process jobs until cancelled; other processes then take over
        unfinished jobs.
        """
        running: dict[asyncio.Task[None], str] = {}
        try:
            while True:
                # Results of finished jobs are not read: `_run_guarded` handles their
                # errors.
                running = {task: owner for task, owner in running.items() if not task.done()}
                # Claim only as many as can run now, and leave the others to other
                # processes.
                for record in await self._claim_records(Counter(running.values())):
                    task = asyncio.create_task(self._run_guarded(process, record))
                    running[task] = record.key.owner
                try:
                    async with asyncio.timeout(STATE_CHECK_INTERVAL):
                        await self._new_jobs.wait()
                except TimeoutError:
                    pass
                # Cleared before the next claim, so that no announced job is missed.
                self._new_jobs.clear()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def run_job(self, job: Job) -> None:
        """Run all tasks of a job, unless it stops first."""
        try:
            async with asyncio.TaskGroup() as group:
                # If the job was cancelled, the watcher raises, and the group cancels
                # its requests.
                watcher = group.create_task(_raise_when_stopped(job))
                await self._run_tasks(job)
                # Otherwise the group would wait for the watcher, which ends only when
                # the job must stop.
                watcher.cancel()
        except* (JobStopped, CommitConflict):
            log.info("%s %s was stopped", self._kind, job.id)

    async def _run_tasks(self, job: Job) -> None:
        async with asyncio.TaskGroup() as group, aclosing(job.pending_tasks()) as tasks:
            async for task in tasks:
                # Before the task is created: a batch of 50,000 lines must not create as
                # many tasks.
                place = self._slots.enter(job.owner)
                try:
                    await place.wait()
                except BaseException:
                    place.leave()
                    raise
                running = group.create_task(self._run_task(job, task))
                # Not in the task itself, which runs no code if it is cancelled before
                # its first step.
                running.add_done_callback(lambda _, place=place: place.leave())

    async def _run_task(self, job: Job, task: JobTask) -> None:
        """Run a task; retry with backoff while the server is overloaded, since no
        client waits for the result.
        """
        delay = RETRY_DELAY
        while True:
            response = await self._client(Caller(job.owner), task.path, task.body)
            # Errors while the server shuts down are not caused by the request and must
            # not become its result.
            is_serving = any(
                engine.health().ready for model in self._service.models for engine in model.engines
            )
            if response.status not in _OVERLOADED_STATUSES and (
                response.status < 500 or is_serving
            ):
                break
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY_DELAY)
        await job.store_result(task, response)

    async def _list_unclaimed(self, running: Counter[str]) -> tuple[Record, ...]:
        """List unclaimed records, further ones while the owners of all run enough jobs."""
        limit = CLAIMABLE
        while True:
            records = await self._store.list_abandoned(self._kind, limit)
            if len(records) < limit or any(
                running[record.key.owner] < JOBS_PER_OWNER for record in records
            ):
                return records
            limit *= 2

    async def _claim_records(self, running: Counter[str]) -> list[Record]:
        """Claim as many unclaimed records as their owners may run.

        running: number of jobs in progress, by owner.
        """
        claimed: list[Record] = []
        if running.total() >= self._max_jobs:
            return claimed
        try:
            for record in await self._list_unclaimed(running):
                counts = running + Counter(record.key.owner for record in claimed)
                if counts.total() >= self._max_jobs:
                    break
                if counts[record.key.owner] >= JOBS_PER_OWNER:
                    continue
                # Conditional on the version: of two processes that claim it, one gets a
                # conflict.
                claim = Replace(
                    record.key, record.state, record.body, self._store.run, version=record.version
                )
                try:
                    await self._store.commit(claim)
                except CommitConflict:
                    continue
                current = await self._store.get(record.key)
                claimed += [current] if current is not None else []
        except DragomanError:
            # The store has logged the error; the next poll tries again.
            pass
        return claimed

    async def _run_guarded(
        self, process: Callable[[Record, JobRunner], Awaitable[None]], record: Record
    ) -> None:
        """Process a job; after an internal error release it so that any process can
        retry it.
        """
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
        """Release the claim if this process still holds it. Retries until stored:
        otherwise the job would be stuck.
        """
        while True:
            try:
                current = await self._store.get(key)
                if current is not None and current.run == self._store.run:
                    await self._store.commit(
                        Replace(
                            key, current.state, current.body, UNCLAIMED_RUN, version=current.version
                        )
                    )
                return
            except CommitConflict:
                continue
            except DragomanError:
                await asyncio.sleep(MAX_RETRY_DELAY)


async def _raise_when_stopped(job: Job) -> None:
    # Another process may have cancelled the job, so polling is the only way.
    while await job.can_continue():  # noqa: ASYNC110
        await asyncio.sleep(STATE_CHECK_INTERVAL)
    raise JobStopped
