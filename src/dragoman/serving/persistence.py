"""Storing of a reply before its stream ends. Independent of dialect and store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from ..core.events import Finished
from ..core.reply import Reply, ReplyBuilder
from ..pipeline.run import AdmittedRun
from .streaming import EventBatches


def persist_before_finish(run: AdmittedRun, persist: Callable[[Reply], Awaitable[None]]) -> EventBatches:
    """Return the run's events, but the last one only after `persist` has stored the whole reply: a client that sees the
    end can rely on it.

    An error of `persist` ends the stream as a failure, so that an unstored reply never appears complete.
    """
    builder = ReplyBuilder()
    # Batches that a receiver gets directly do not pass through the generator below.
    if run.direct is not None:
        run.direct.add_observer(builder.feed_all)
    return _persist_before_finish(run.batches, builder, persist)


async def _persist_before_finish(
    batches: EventBatches, builder: ReplyBuilder, persist: Callable[[Reply], Awaitable[None]]
) -> EventBatches:
    async with aclosing(batches):
        async for batch in batches:
            builder.feed_all(batch)
            if not isinstance(batch[-1], Finished):
                yield batch
                continue
            if batch[:-1]:
                yield batch[:-1]
            await persist(builder.build())
            yield batch[-1:]
