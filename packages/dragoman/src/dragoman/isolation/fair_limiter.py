"""Limits how many jobs run at a time, and lets owners take turns."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairLimiter:
    """A limit of concurrent jobs. Used on one event loop.

    The next place goes to the owner that holds the fewest; among equals to the one whose
    last turn is the longest ago. So one that queues many jobs delays another
    owner by at most one of them.

    per_owner: maximum number of places of one owner; None means all.
    """

    def __init__(self, places: int, per_owner: int | None = None) -> None:
        self._free = places
        self._per_owner = places if per_owner is None else per_owner
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[Place]] = {}
        # The owners' last turns. They are kept while any job runs: one that queues a
        # job as soon as its last one has ended must not always be first.
        self._turns: dict[str, int] = {}
        self._n_turns = 0

    def enter(self, owner: str) -> Place:
        """Queue a job. Its place must be left in any case."""
        place = Place(self)
        place.join(owner)
        return place

    @asynccontextmanager
    async def hold(self, owner: str) -> AsyncGenerator[None]:
        """Hold a place, after waiting for it."""
        place = self.enter(owner)
        try:
            await place.wait()
            yield
        finally:
            place.leave()

    def enqueue(self, owner: str, place: Place) -> None:
        self._waiting.setdefault(owner, deque()).append(place)
        self._grant()

    def remove(self, owner: str, place: Place) -> None:
        """Remove a job that no longer waits."""
        jobs = self._waiting.get(owner)
        if jobs is not None and place in jobs:
            jobs.remove(place)
            if not jobs:
                del self._waiting[owner]

    def release(self, owner: str) -> None:
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def _grant(self) -> None:
        while self._free and self._waiting:
            owner = min(
                self._waiting, key=lambda owner: (self._held[owner], self._turns.get(owner, 0))
            )
            # All others hold as many.
            if self._held[owner] >= self._per_owner:
                break
            self._free -= 1
            self._held[owner] += 1
            self._n_turns += 1
            self._turns[owner] = self._n_turns
            self._waiting[owner][0].grant(owner)
        if not self._held:
            self._turns.clear()


class Place:
    """The place of one job, from its queueing to its end."""

    def __init__(self, limiter: FairLimiter) -> None:
        self._limiter = limiter
        self._granted = asyncio.Event()
        self._owners: set[str] = set()
        """Those in whose queues it waits."""
        self._holder: str | None = None

    def join(self, owner: str) -> None:
        """Let the job run in the turn of this owner as well, if that comes first."""
        if self._holder is None and owner not in self._owners:
            self._owners.add(owner)
            self._limiter.enqueue(owner, self)

    async def wait(self) -> None:
        await self._granted.wait()

    def grant(self, owner: str) -> None:
        self._holder = owner
        self._stop_waiting()
        self._granted.set()

    def leave(self) -> None:
        """End the job, or its waiting."""
        self._stop_waiting()
        if self._holder is not None:
            holder = self._holder
            self._holder = None
            self._limiter.release(holder)

    def _stop_waiting(self) -> None:
        for owner in self._owners:
            self._limiter.remove(owner, self)
        self._owners.clear()
