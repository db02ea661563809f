"""Responses that are made without their clients: looked after, followed, cancelled, settled. `running` makes them.

Everything that a client hears of such a response was stored before, so that any process can go on telling it, and
nothing that was heard is lost with the process that made it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress

from ...core.errors import DragomanError, EngineError, RateLimited
from ...dialects.responses import log as logged
from ...dialects.responses.kept import RUNNING, read_kept, settled
from ...store import Append, Item, Key, Put, Record, Refused, Replace, Store, StoreUnavailable
from ..answer import log
from .past import RESPONSE, entries, no_such_response

EVENTS = "events"
"""The series of a response's record that has its events: as many an entry as there were at once."""

TICK = 1.0
"""Seconds after which this process sees what others did to its runs: a cancellation, a deletion."""
LAPSE_TICKS = 2
"""Ticks after which it looks for runs of processes that have died."""
POLL, LOCAL_POLL = 0.25, 5.0
"""Seconds after which a follower looks for events of another process, and of this one, which tells of them."""


class Background:
    """All runs of this process. limit: how many there may be at the same time."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store, self._limit = store, limit
        self._runs: dict[Key, asyncio.Task[None]] = {}
        self._news: dict[Key, asyncio.Event] = {}
        self._unsettled: dict[Key, EngineError] = {}
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Settle what died with earlier processes, and go on looking."""
        await self.settle_lapsed()
        self._watch = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        """What still runs has failed. What cannot be told so now, the next process to look will find."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        keys = list(self._runs)
        await self._stop(*keys)
        with suppress(StoreUnavailable):
            for key in keys:
                await self.settle(key, EngineError("The server was stopped before the response was finished."))

    def check_room(self) -> None:
        """Raises RateLimited."""
        if len(self._runs) >= self._limit:
            raise RateLimited(f"There are already {self._limit} background responses; retry later.")

    async def begin(self, put: Put, events: bytes, run: Coroutine[object, object, None]) -> None:
        """put: the record of a response. events: its first. run: makes it, once both are stored. Raises RateLimited."""
        try:
            self.check_room()
            await self._store.commit(put, appended(put.key, events))
        except BaseException:
            run.close()
            raise
        task = asyncio.create_task(run)
        self._runs[put.key] = task
        task.add_done_callback(lambda done: self._ended(put.key, done))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        """A run that ended without settling its response is settled by the next tick; who cancelled it has done so."""
        self._runs.pop(key, None)
        if task.cancelled():
            error = None
        elif (error := task.exception()) is None:
            return
        else:
            log.error("background response %s failed", key.id, exc_info=error)
        self._unsettled[key] = EngineError("The server failed while it made this response; its log says why.")

    async def cancel(self, record: Record) -> Record | None:
        """Its record afterwards; None if it was deleted meanwhile. What has ended already stays as it is."""
        await self.settle(record.key, None)
        await self._stop(record.key)
        return await self._store.get(record.key)

    async def forget(self, key: Key) -> None:
        """It was deleted: nobody need make it any more."""
        await self._stop(key)
        self.tell(key)

    async def follow(self, key: Key, after: int) -> AsyncGenerator[bytes]:
        """The events that are numbered higher than `after`, as they were told the first time, then those that come.

        Raises NotFound if the response is deleted meanwhile.
        """
        position: int | None = None
        try:
            while True:
                news = self._news.setdefault(key, asyncio.Event())
                batch = await self._store.entries(key, EVENTS, after=position, limit=100)
                for entry in batch:
                    position = entry.position
                    if said := logged.after(entry.body, after):
                        yield said
                    if logged.ends(entry.body):
                        return
                if not batch:
                    await self._wait(key, news)
        finally:
            self.tell(key)

    async def _wait(self, key: Key, news: asyncio.Event) -> None:
        if await self._store.get(key) is None:
            raise no_such_response(key.id)
        # `wait_for` of Python 3.11 forgets that it was cancelled if what it waits for comes at the same moment.
        with suppress(TimeoutError):
            async with asyncio.timeout(LOCAL_POLL if key in self._runs else POLL):
                await news.wait()

    def tell(self, key: Key) -> None:
        """Wake those who follow: something was stored."""
        if news := self._news.pop(key, None):
            news.set()

    def give_up(self, key: Key) -> None:
        """Its end could not be stored: that is tried again."""
        self._unsettled[key] = EngineError("The response could not be stored.")

    async def settle_lapsed(self) -> None:
        while records := await self._store.lapsed(RESPONSE):
            for record in records:
                await settle(self._store, record, EngineError("The server stopped while it generated this response."))

    async def tick(self) -> None:
        """See what others did to this process's runs, and end what could not be ended."""
        for key in list(self._runs):
            record = await self._store.get(key)
            if record is None or record.state not in RUNNING:
                await self._stop(key)
        for key, error in list(self._unsettled.items()):
            await self.settle(key, error)
            self._unsettled.pop(key, None)

    async def _look_after(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK)
            ticks += 1
            try:
                await self.tick()
                if ticks % LAPSE_TICKS == 0:
                    await self.settle_lapsed()
            except StoreUnavailable as error:
                log.warning("background responses cannot be monitored: %s", error)

    async def settle(self, key: Key, error: DragomanError | None) -> None:
        """See `settle`."""
        record = await self._store.get(key)
        if record is not None:
            await settle(self._store, record, error)
            self.tell(key)

    async def _stop(self, *keys: Key) -> None:
        tasks = [task for key in keys if (task := self._runs.get(key)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def settle(store: Store, record: Record, error: DragomanError | None) -> None:
    """End a run from outside: as failed by `error`, or as cancelled. Does nothing to what has ended.

    Its events may grow meanwhile: they are numbered, and of two that have the same number one is refused.
    """
    key = record.key
    while record.state in RUNNING:
        told = b"".join(entry.body for entry in await entries(store, key, EVENTS))
        end = settled(read_kept(record.body), told, error)
        body = read_kept(record.body).with_object(end.whole).encode()
        replace = Replace(key, end.status, body, states=RUNNING, version=record.version)
        with suppress(Refused):
            await store.commit(replace, Append(key, EVENTS, (Item(end.events, str(end.number)),)))
            return
        found = await store.get(key)
        if found is None:
            return
        record = found


def appended(key: Key, said: bytes) -> Append:
    """Refused once the response has ended, or where somebody else has told an event of the same number."""
    return Append(key, EVENTS, (Item(said, str(logged.number(said))),), states=RUNNING)
