"""Keeping an answer before its end is told. Knows no dialect and no store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from ..core.events import Finished
from ..core.reply import Reply, ReplyBuilder
from .streaming import EventBatches


async def persist_before_finish(batches: EventBatches, persist: Callable[[Reply], Awaitable[None]]) -> EventBatches:
    """The same events. The last one comes once the whole answer is kept: who hears the end can rely on it.

    What `keep` raises ends the answer as any failure does, so that what was not kept never seems to be.
    """
    fold = ReplyBuilder()
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                fold.feed(event)
            if not isinstance(batch[-1], Finished):
                yield batch
                continue
            if batch[:-1]:
                yield batch[:-1]
            await persist(fold.build())
            yield batch[-1:]
