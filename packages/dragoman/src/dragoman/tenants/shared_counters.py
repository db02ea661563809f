"""Counters of limits that several processes share, on top of a `LimitsStore`.

A process sends its operations in batches, one at a time: while one is in flight,
further operations are collected for the next. So the number of round trips does not
grow with the load, and the store sees the operations of a process in order.

While the store fails, each process applies the limits alone, starting from the last
known shared counters. When the store responds again, the process sends what it has
taken.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter as Multiset
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from .counters import CounterState, Demand, LocalCounters, UnmetDemand, find_unmet
from .limits_store import (
    TIMEOUT,
    Batch,
    BatchStatus,
    LimitOperation,
    LimitsStore,
    LimitsStoreUnavailable,
)

log = logging.getLogger(__name__)

LEASE = 30.0
"""Seconds after which the places of a process are freed if it does not renew its lease.
"""
RETRY_INTERVAL = 1.0
"""Seconds between attempts while the store fails."""
LOG_INTERVAL = 60.0
"""Seconds between log messages while the store fails."""
MAX_BATCH = 64
"""Maximum takes in a batch, and maximum other operations: a store locks all of their
keys.
"""


class _Take(Struct):
    """A take that waits for the store."""

    key: str
    demands: tuple[Demand, ...]
    future: asyncio.Future[UnmetDemand | None]


class SharedCounters:
    """One process's access to counters that it shares with others. It is a
    `lifespan.LifespanResource`.

    read_clock: returns monotonic seconds.
    lease: duration of the lease, in seconds.
    timeout: seconds for one batch.
    """

    is_shared = True

    def __init__(
        self,
        store: LimitsStore,
        read_clock: Callable[[], float],
        *,
        lease: float = LEASE,
        timeout: float = TIMEOUT,
    ) -> None:
        self._store = store
        self._read_clock = read_clock
        self._lease = lease
        self._timeout = timeout
        self._known = LocalCounters(read_clock)
        """Last known values of the shared counters; they enforce the limits while the
        store fails.
        """
        self._takes: list[_Take] = []
        self._adds: dict[tuple[str, str], Demand] = {}
        """Queued forced operations, summed per counter."""
        self._places: Multiset[str] = Multiset()
        """Places that this process holds, by key."""
        self._recovery: Batch | None = None
        self._failed_at: float | None = None
        self._logged_at = 0.0
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._use_new_holder()
        self.errors = 0
        """Number of failed batches."""

    @property
    def is_failing(self) -> bool:
        return self._failed_at is not None

    async def open(self) -> None:
        await self._store.open()
        self._is_closing = False
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Send the queued operations, and give up all places."""
        if self._task is not None:
            self._is_closing = True
            self._wake.set()
            self._retry.set()
            await self._task
            self._task = None
        await self._store.close()

    async def take(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        if self.is_failing or self._task is None:
            return self._take_alone(key, tuple(demands))
        future: asyncio.Future[UnmetDemand | None] = asyncio.get_running_loop().create_future()
        self._takes.append(_Take(key, tuple(demands), future))
        self._notify()
        try:
            return await future
        except asyncio.CancelledError:
            # The units were taken, but this task was cancelled before it resumed.
            if future.done() and not future.cancelled() and future.result() is None:
                self._give_back(key, demands)
            raise

    def check(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        return self._known.check(key, demands)

    def add(self, key: str, demand: Demand) -> None:
        self._known.add(key, demand)
        if demand.is_hold:
            self._places[key] += demand.amount
        self._queue_add(key, demand)
        self._notify()

    def peek(self, key: str, demands: Sequence[Demand]) -> tuple[CounterState, ...]:
        return self._known.peek(key, demands)

    async def settle(self) -> None:
        """Wait until the store has all queued operations, or fails."""
        if self._task is not None:
            await self._settled.wait()

    async def renew(self) -> None:
        """Renew the lease now; if the store is failing, retry now."""
        self._notify()
        self._retry.set()
        await self._settled.wait()

    def _notify(self) -> None:
        self._settled.clear()
        self._wake.set()

    async def _run(self) -> None:
        is_last = False
        while not is_last:
            # Wait until there is something to send, the lease must be renewed, or the
            # failing store is to be retried.
            if self.is_failing:
                event = self._retry
                timeout = RETRY_INTERVAL
            else:
                # A third of the lease: a late or failed renewal can be repeated before
                # the lease expires.
                event = self._wake
                timeout = self._lease / 3 if self._places.total() else None
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await event.wait()
            while await self._send() and (self._takes or self._adds or self._recovery is not None):
                pass
            self._settled.set()
            is_last = self._is_closing
        if self.is_failing:
            return
        # Free the places at once, not only when the lease expires.
        batch = Batch(holder=self._holder, seq=self._seq, lease=0)
        with suppress(LimitsStoreUnavailable, TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._store.apply(batch)

    async def _send(self) -> bool:
        """Send one batch. Return False if the store failed."""
        self._wake.clear()
        self._retry.clear()
        batch, takes = self._build_batch()
        try:
            async with asyncio.timeout(self._timeout):
                result = await self._store.apply(batch)
        # Catch anything that a driver raises: without this task all requests with
        # limits would hang.
        except Exception as error:
            self._fail(batch, takes, error)
            return False
        if self._failed_at is not None:
            log.warning(
                "the limits store responds again after %.0f s", self._read_clock() - self._failed_at
            )
            self._failed_at = None
        if self._recovery is not None:
            self._recovery = None
            self._seq += 1
            return True
        if result.status is not BatchStatus.APPLIED:
            # Nothing was applied: the process was suspended for longer than its lease,
            # or the store was emptied. The takes return to the head of the queue,
            # before those that were queued in the meantime.
            self._takes[:0] = takes
            self._recover(
                None, [operation for operation in batch.operations if operation.is_forced]
            )
            return True
        self._seq += 1
        outcomes = result.outcomes
        for operation, outcome in zip(batch.operations, outcomes, strict=True):
            for demand, used in zip(operation.demands, outcome.used, strict=True):
                # Replace the estimate, so that its errors do not accumulate.
                self._known.replace(operation.key, demand, used)
        for take, outcome in zip(takes, outcomes[len(outcomes) - len(takes) :], strict=True):
            if not outcome.is_taken:
                unmet = find_unmet(take.demands, outcome.used)
                assert unmet is not None
                self._resolve(take, unmet)
                continue
            for demand in take.demands:
                if demand.is_hold:
                    self._places[take.key] += demand.amount
            self._resolve(take, None)
        return True

    def _build_batch(self) -> tuple[Batch, list[_Take]]:
        """Build the next batch; return it with the takes that it contains."""
        if self._recovery is not None:
            return self._recovery, []
        adds = [
            LimitOperation(key, (demand,), is_forced=True)
            for (key, _), demand in list(self._adds.items())[:MAX_BATCH]
        ]
        for add in adds:
            del self._adds[add.key, add.demands[0].counter]
        takes = self._takes[:MAX_BATCH]
        self._takes = self._takes[MAX_BATCH:]
        gives_places = any(add.demands[0].is_hold for add in adds)
        operations = (
            *adds,
            *(LimitOperation(take.key, take.demands, is_forced=False) for take in takes),
        )
        batch = self._new_batch(operations)
        # A lease without places is not renewed, so it may have expired. A new holder
        # would do, but stores keep each for an hour.
        if not self._places.total() and not gives_places:
            batch = msgspec.structs.replace(batch, has_no_places=True)
        return batch, takes

    def _new_batch(self, operations: tuple[LimitOperation, ...] = ()) -> Batch:
        lease = round(self._lease * 1_000_000)
        return Batch(holder=self._holder, seq=self._seq, lease=lease, operations=operations)

    def _resolve(self, take: _Take, unmet: UnmetDemand | None) -> None:
        if not take.future.done():
            take.future.set_result(unmet)
        elif unmet is None:
            # The request was cancelled.
            self._give_back(take.key, take.demands)

    def _give_back(self, key: str, demands: Sequence[Demand]) -> None:
        for demand in demands:
            if demand.amount:
                self.add(key, msgspec.structs.replace(demand, amount=-demand.amount))

    def _fail(self, batch: Batch, takes: list[_Take], error: Exception) -> None:
        """Handle a failed batch: decide the waiting takes locally, and prepare the
        recovery of the store.
        """
        self.errors += 1
        now = self._read_clock()
        if self._failed_at is None or now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            # str() of a TimeoutError is empty.
            reason = str(error) or f"no response within {self._timeout:g} s"
            log.error(
                "the limits store fails; each process applies the limits alone until it responds: "
                "%s",
                reason,
            )
        if self._failed_at is None:
            self._failed_at = now
        if self._recovery is None:
            forced = [operation for operation in batch.operations if operation.is_forced]
            for take in takes:
                unmet = self._known.check(take.key, take.demands)
                if unmet is None:
                    self._note_taken(take.key, take.demands)
                    forced.append(LimitOperation(take.key, take.demands, is_forced=True))
                self._resolve(take, unmet)
            # It is unknown whether the batch was applied. The recovery names it, so
            # that the store applies `redo` only if it was not.
            self._recover((batch.holder, batch.seq), forced)
        waiting = self._takes
        self._takes = []
        for take in waiting:
            self._resolve(take, self._take_alone(take.key, take.demands))

    def _recover(self, previous: tuple[str, int] | None, forced: list[LimitOperation]) -> None:
        """Prepare the first batch of a new holder.

        previous: holder and number of the last batch, if its fate is unknown.
        forced: the operations that it should have applied.
        """
        redo = [
            LimitOperation(operation.key, demands, is_forced=True)
            for operation in forced
            if (demands := tuple(demand for demand in operation.demands if not demand.is_hold))
        ]
        self._use_new_holder()
        places = {key: number for key, number in self._places.items() if number}
        # The new holder sends all places at once, so queued changes of places would
        # count twice.
        self._adds = {name: demand for name, demand in self._adds.items() if not demand.is_hold}
        batch = self._new_batch()
        self._recovery = msgspec.structs.replace(
            batch, previous=previous, redo=tuple(redo), places=places
        )

    def _take_alone(self, key: str, demands: tuple[Demand, ...]) -> UnmetDemand | None:
        unmet = self._known.check(key, demands)
        if unmet is None:
            self._note_taken(key, demands)
            for demand in demands:
                self._queue_add(key, demand)
        return unmet

    def _note_taken(self, key: str, demands: tuple[Demand, ...]) -> None:
        for demand in demands:
            self._known.add(key, demand)
            if demand.is_hold:
                self._places[key] += demand.amount

    def _queue_add(self, key: str, demand: Demand) -> None:
        # Budgets need no queue while the store fails: the usage ledger has what was
        # used (`Demand.floor`).
        if not demand.amount or (demand.until and self.is_failing):
            return
        queued = self._adds.get((key, demand.counter))
        amount = demand.amount
        if queued is not None and queued.until == demand.until:
            amount += queued.amount
        # Summed: under load thousands of requests end between two batches, and each
        #     counter is sent once.
        self._adds[key, demand.counter] = msgspec.structs.replace(demand, amount=amount)

    def _use_new_holder(self) -> None:
        self._holder = secrets.token_hex(8)
        self._seq = 1
