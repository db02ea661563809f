"""Keeping an answer before its end is told. Knows no dialect and no store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from ..core.events import Finished
from ..core.reply import Fold, Reply
from .answer import Batches


async def keeping(batches: Batches, keep: Callable[[Reply], Awaitable[None]]) -> Batches:
    """The same events. The last one comes once the whole answer is kept: who hears the end can rely on it.

    What `keep` raises ends the answer as any failure does, so that what was not kept never seems to be.
    """
    fold = Fold()
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                fold.feed(event)
            if not isinstance(batch[-1], Finished):
                yield batch
                continue
            if batch[:-1]:
                yield batch[:-1]
            await keep(fold.reply())
            yield batch[-1:]
