"""One response that is made without its client: it is stored event by event as it comes, see `background`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from ...core.errors import DragomanError
from ...core.events import Event, Finished, Started
from ...core.reply import Fold
from ...dialects.responses.kept import RUNNING
from ...pipeline.engine_calls import contain
from ...store import Change, Key, Put, Refused, Replace, StoreUnavailable
from ..answer import log, unexpected
from .background import Background, appended
from .turn import Keeper, Turn


async def start(background: Background, turn: Turn) -> bytes:
    """The object of the response, which is stored and runs now. Raises RateLimited."""
    keeper, writer = turn.keeper, turn.writer
    assert keeper is not None, "the reader refuses a background response that is not to be stored"
    key = keeper.key(turn)
    kept = turn.kept(writer.waiting())
    parent, run = keeper.parent(turn), keeper.store.run
    put = Put(key, turn.header.created, kept.encode(), state="queued", parent=parent, run=run)
    await background.begin(put, writer.queue(), _Run(background, key, turn, keeper)())
    return bytes(kept.object)


class _Run:
    """One response that is being made. Events are stored together as they come while others are being stored."""

    def __init__(self, house: Background, key: Key, turn: Turn, keeper: Keeper) -> None:
        self._house, self._key, self._turn, self._keeper = house, key, turn, keeper
        self._pending: list[bytes] = []
        self._starts = False
        self._storing: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        try:
            await self._make()
        except Refused:
            """Somebody has cancelled or deleted it, and told so already."""
        except DragomanError as error:
            await self._fail(error)
        except BaseException as error:
            failure = contain(error, asyncio.current_task())
            if not isinstance(failure, Exception):
                raise
            await self._fail(failure if isinstance(failure, DragomanError) else unexpected(failure))
        finally:
            if self._storing is not None:
                self._storing.cancel()
                await asyncio.gather(self._storing, return_exceptions=True)

    async def _make(self) -> None:
        writer, fold = self._turn.writer, Fold()
        async with aclosing(self._turn.admitted.run.batches) as batches:
            async for batch in batches:
                for event in batch:
                    fold.feed(event)
                *said, last = batch
                self._say(said)
                if isinstance(last, Finished):
                    reply = fold.reply()
                    self._turn.hear(reply)
                    whole = writer.full(reply)
                    await self._end(whole, writer.feed(last))
                    return
                self._say([last])
                self._store_soon()

    def _say(self, events: list[Event]) -> None:
        self._starts |= any(isinstance(event, Started) for event in events)
        self._pending += (said for event in events if (said := self._turn.writer.feed(event)))

    async def _fail(self, error: DragomanError) -> None:
        """What can still be told is told; then it is ended as anybody would end it."""
        try:
            with suppress(StoreUnavailable, Refused):
                await self._storing_done()
                await self._store()
            await self._house.settle(self._key, error)
        except StoreUnavailable as unavailable:
            log.warning("the end of background response %s could not be stored: %s", self._key.id, unavailable)
            self._house.give_up(self._key)

    def _store_soon(self) -> None:
        storing = self._storing
        if storing is not None and storing.done():
            storing.result()
            storing = None
        if storing is None:
            self._storing = asyncio.create_task(self._store())

    async def _store(self) -> None:
        while self._pending:
            said, self._pending = b"".join(self._pending), []
            changes: list[Change] = [appended(self._key, said)]
            if self._starts:
                self._starts = False
                running = self._turn.kept(self._turn.writer.running()).encode()
                run = self._keeper.store.run
                changes.insert(0, Replace(self._key, "in_progress", running, run=run, states=RUNNING))
            await self._keeper.commit(*changes)
            self._house.tell(self._key)

    async def _end(self, whole: bytes, last: bytes) -> None:
        """The response, its last events and what its conversation gets of it are stored together or not at all."""
        await self._storing_done()
        kept = self._turn.kept(whole)
        state = kept.told().status
        said = b"".join((*self._pending, last))
        await self._keeper.commit(
            appended(self._key, said),
            Replace(self._key, state, kept.encode(), states=RUNNING),
            *self._keeper.said(kept, state),
        )
        self._house.tell(self._key)

    async def _storing_done(self) -> None:
        if self._storing is not None:
            await self._storing
