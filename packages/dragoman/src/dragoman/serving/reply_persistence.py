"""Storing of a reply before its stream ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from ..core.events import Finished
from ..core.reply import Reply, ReplyBuilder
from ..pipeline.admit import AdmittedRun
from .generation_responder import EventBatches


def persist_before_finish(
    run: AdmittedRun, persist: Callable[[Reply], Awaitable[None]]
) -> EventBatches:
    """Return the run's events, of which the last one comes only after `persist` has
    stored the whole reply.

    A client that has seen the end of a stream can rely on the stored reply.

    An error of `persist` ends the stream as a failure, so that an unstored reply never
    appears complete.
    """
    builder = ReplyBuilder()
    # Batches that are delivered to a receiver directly bypass the generator below.
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
