"""Backends of the store's test kit: each can open the same storage several times."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dragoman.store import Bounds, Key, Put, Record, Store

Make = Callable[[Bounds, Callable[[], float]], Store]


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Storage:
    """Storage of one backend.

    make: opens it again.
    durable: commits are visible to other and later stores of the same storage.
    """

    make: Make
    durable: bool
    clock: Clock = field(default_factory=Clock)

    @asynccontextmanager
    async def open(self, bounds: Bounds | None = None) -> AsyncGenerator[Store]:
        store = self.make(bounds or Bounds(), self.clock)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def key(id: str, kind: str = "response", owner: str = "me") -> Key:
    return Key(owner, kind, id)


async def put(store: Store, id: str, body: bytes = b"{}", **more: object) -> Record:
    """Put a record, and return it as stored."""
    await store.commit(Put(key(id), 1_700_000_000, body, **more))  # pyright: ignore[reportArgumentType]
    record = await store.get(key(id))
    assert record is not None
    return record
