"""Storing of a reply before its stream ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..core.events import Event
from ..core.reply import Reply, ReplyBuilder
from ..pipeline.driver import Stage


class ReplyPersistence(Stage):
    """Stores the whole reply before the client gets the last event.

    A client that has seen the end of a stream can rely on the stored reply. An error of
    `persist` ends the stream as a failure, so that an unstored reply never appears
    complete.
    """

    __slots__ = ("_builder", "_persist")

    def __init__(self, persist: Callable[[Reply], Awaitable[None]]) -> None:
        self._builder = ReplyBuilder()
        self._persist = persist

    def feed(self, batch: list[Event]) -> list[Event]:
        self._builder.feed_all(batch)
        return batch

    async def finish(self) -> None:
        await self._persist(self._builder.build())
