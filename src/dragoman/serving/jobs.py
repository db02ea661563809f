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
from ..store import NOBODY, Change, Delete, Key, Record, Refused, Replace, Store
from .auth import Caller
from .perform import Performed, Performer
from .service import Service

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at what other processes have left, and at whether a job was cancelled meanwhile."""
PAUSE = 0.5
"""Seconds before what found no room is tried again; longer each time, up to LONGEST_PAUSE."""
LONGEST_PAUSE = 30.0
_NO_ROOM = frozenset({429, 503, 529})


class Task(Struct, frozen=True):
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

    def tasks(self) -> AsyncGenerator[Task]:
        """Those that are still to be done."""
        ...

    async def keep(self, task: Task, answer: Performed) -> None:
        """Write the result down. Raises Refused where the job is no longer to go on."""
        ...

    async def goes_on(self) -> bool:
        """Whether it has been neither cancelled nor overtaken by its time."""
        ...


class Held:
    """A record in this process's hands. Whatever it writes says what it believes to be there, so that it never works
    against another process, or against a client that has cancelled it.
    """

    def __init__(self, store: Store, record: Record) -> None:
        self._store, self.record = store, record

    @property
    def key(self) -> Key:
        return self.record.key

    async def commit(self, state: str, body: bytes, *more: Change, done: bool = False) -> None:
        """done: nobody works on it any more. Raises Refused where the record is not as it was."""
        run = None if done else self._store.run
        await self._store.commit(*more, Replace(self.key, state, body, run, version=self.record.version))
        version = self.record.version + 1
        self.record = msgspec.structs.replace(self.record, state=state, body=body, run=run, version=version)

    async def reload(self) -> None:
        """Raises Refused if it is gone, or in another process's hands."""
        record = await self._store.get(self.key)
        if record is None or record.run != self._store.run:
            raise Refused(Delete(self.key), None if record is None else record.state)
        self.record = record


class Stopped(Exception):
    """The job is not to go on."""


class Jobs:
    """The jobs of one kind that this process works on. room: for the tasks of all jobs. most: jobs at a time."""

    def __init__(
        self, service: Service, store: Store, perform: Performer, kind: str, room: asyncio.Semaphore, most: int = 4
    ) -> None:
        self._service, self._store, self._perform, self._kind = service, store, perform, kind
        self._room, self._most = room, most

    async def run(self, work: Callable[[Record, Jobs], Awaitable[None]]) -> None:
        """Take what nobody works on, again and again, until it is cancelled: what runs then is left to others."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                running = {task for task in running if not task.done()}
                for record in await self._taken(self._most - len(running)):
                    running.add(asyncio.create_task(self._guarded(work, record)))
                await _until(self._service.new_work, LOOK)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def do(self, job: Job) -> None:
        """All tasks of a job, unless it is stopped before they are done."""
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch(job))
                await self._all(job)
                watching.cancel()
        except* (Stopped, Refused):
            log.info("%s %s was stopped", self._kind, job.id)

    async def _all(self, job: Job) -> None:
        async with asyncio.TaskGroup() as group, aclosing(job.tasks()) as tasks:
            async for task in tasks:
                await self._room.acquire()
                one = group.create_task(self._one(job, task))
                # Not in the task itself: one that is cancelled before it has begun runs nothing.
                one.add_done_callback(lambda _: self._room.release())

    async def _one(self, job: Job, task: Task) -> None:
        """Where there is no room now it waits, for nobody waits for it."""
        pause = PAUSE
        while True:
            answer = await self._perform(Caller(job.owner), task.path, task.body)
            if answer.status not in _NO_ROOM and (answer.status < 500 or self._ready()):
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        await job.keep(task, answer)

    def _ready(self) -> bool:
        """A server that is stopping answers with errors that are not the requests' own."""
        return any(engine.health().ready for model in self._service.models for engine in model.engines)

    async def _taken(self, most: int) -> list[Record]:
        """Of several processes that want one, one gets it."""
        taken: list[Record] = []
        if most <= 0:
            return taken
        try:
            for record in await self._store.lapsed(self._kind, most):
                mine = Replace(record.key, record.state, record.body, self._store.run, version=record.version)
                try:
                    await self._store.commit(mine)
                except Refused:
                    continue
                now = await self._store.get(record.key)
                taken += [now] if now is not None else []
        except DragomanError:
            # The store has said why in the log; the next look may find it well again.
            pass
        return taken

    async def _guarded(self, work: Callable[[Record, Jobs], Awaitable[None]], record: Record) -> None:
        """A job that fails for a reason of ours is let go of, and tried again by whoever looks next."""
        try:
            await work(record, self)
        except Refused:
            log.info("%s %s was changed by another process", self._kind, record.key.id)
            await self._let_go(record.key)
        except Exception:
            log.exception("%s %s failed and will be retried", self._kind, record.key.id)
            await asyncio.sleep(LONGEST_PAUSE)
            await self._let_go(record.key)

    async def _let_go(self, key: Key) -> None:
        """If it is still ours. Until that is written down nobody else would take it."""
        while True:
            try:
                now = await self._store.get(key)
                if now is not None and now.run == self._store.run:
                    await self._store.commit(Replace(key, now.state, now.body, NOBODY, version=now.version))
                return
            except Refused:
                continue
            except DragomanError:
                await asyncio.sleep(LONGEST_PAUSE)


async def _watch(job: Job) -> None:
    # Another process may have cancelled it: there is no event.
    while await job.goes_on():  # noqa: ASYNC110
        await asyncio.sleep(LOOK)
    raise Stopped


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()
