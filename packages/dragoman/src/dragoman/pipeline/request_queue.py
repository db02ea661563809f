"""The queue in front of a model's engine, which it shares fairly between API keys.

An unlimited queue holds hours of work and any amount of memory. A
first-come-first-served queue is filled by one client that sends more than the engine
can process, and all other clients are rejected. So each owner (an API key) has its own
queue here:

- Order: the owner that has received the least service for its weight is next. Service
  is measured in tokens, as in "Fairness in Serving Large Language Models" (Sheng et
  al., OSDI 2024): prompt tokens, and generated tokens twice.
- Reserve: an owner that already has its share of a full engine leaves the last slots to
  the others. Otherwise these would wait until one of its requests ends, since a slot
  that a long generation holds cannot be taken back.
- Limits: a request that finds the queue full replaces the last request of the owner
  with the most waiting requests (or tokens) for its weight, if its own owner has fewer;
  otherwise it is rejected.

Requests without an owner share one queue in order of arrival.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import TypeVar

import anyio.to_thread
from msgspec import Struct

from ..core.errors import Overloaded, QueueFull
from ..isolation.fair_threads import FairThreads

T = TypeVar("T")

DEFAULT_MAX_REQUESTS = 2048
DEFAULT_MAX_TOKENS = 32 * 1024 * 1024
FAST_REJECTIONS = 50
"""Rejections while the engine's queue is full, after which one request is passed to the
engine again.
"""
MIN_WINDOW = 16
"""Initial number of owners' requests that may wait in the engine's own
first-come-first-served queue. Each of them delays the next owner's turn. The number
grows by one for each request that starts while others are held here, so that an engine
that starts many requests per step receives them; it is reset when requests do not
start.
"""
SLOTS_PER_SUCCESSOR = 32
"""Slots of a full engine per request that may wait in the engine's own queue, ready to
replace one that ends.
"""
SLOTS_PER_RESERVED = 16
"""Slots of the engine per slot that is reserved for owners below their share. While one
owner alone fills the engine, the reserve is idle.
"""
RECENT_ARRIVALS = 1024
"""An owner counts for the shares of the engine until this many requests have arrived
after its last one.
"""
ENDS_OF_FULL_ENGINE = 16
"""If this many requests end while another waits in the engine's own queue, the engine
cannot run more than it runs.
"""
COMPLETION_WEIGHT = 2
"""Service of one generated token, in prompt tokens."""


class QueueShare(Struct, frozen=True):
    """The share of an API key in an engine.

    name: the key; "" if all requests share one queue.
    weight: a key of weight 2 receives twice the service of one of weight 1 while both
        have requests waiting.
    threads: those that all keys share; None if there is nothing to divide.
    """

    name: str = ""
    weight: float = 1.0
    threads: FairThreads | None = None

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run work that takes long in a thread, in the key's turn."""
        if self.threads is None:
            return await anyio.to_thread.run_sync(work)
        return await self.threads.run(self.name, work)


ONE_QUEUE = QueueShare()


class QueueState(Enum):
    """Where a request is on its way through the queue."""

    WAITING = "waiting"
    DISPATCHED = "dispatched"
    """In the engine's own queue."""
    RUNNING = "running"
    LEFT = "left"


class QueuedRequest:
    """A request's place in the queue. Created by `RequestQueue.enqueue`; `leave` must
    always be called.

    tokens: number of tokens of the prompt.
    order: sort key among the owner's requests: (is_background, priority, arrival
        number).
    n_ended: number of requests of the queue that had ended when this one was
        dispatched.
    """

    __slots__ = ("_queue", "_waiter", "n_ended", "order", "owner", "state", "tokens")

    def __init__(
        self, queue: RequestQueue, owner: _Owner, tokens: int, order: tuple[bool, int, int]
    ) -> None:
        self._queue = queue
        self.owner = owner
        self.tokens = tokens
        self.order = order
        self.state = QueueState.WAITING
        self.n_ended = 0
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_turn(self) -> None:
        """Wait until the request may be passed to the engine. Raises QueueFull if
        another key took its place.
        """
        if self.state is QueueState.WAITING:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.state is QueueState.LEFT:
            raise QueueFull(
                "The request queue is full, and other keys have fewer requests in it; retry later."
            )

    def start(self) -> None:
        """Record that the engine has begun to work on the request."""
        self._queue.start(self)

    def leave(self, completion_tokens: int = 0) -> None:
        """Record that the request has ended, in any state."""
        self._queue.leave(self, completion_tokens)

    def wake(self) -> None:
        """Wake `wait_for_turn` after a change of the state."""
        if (
            self._waiter is not None and not self._waiter.done()
        ):  # A cancelled request's waiter is done.
            self._waiter.set_result(None)


class _Owner:
    """One key: its waiting requests, and the service that it has received.

    waiting: requests that are not dispatched, in the order of their turns.
    n_pending, pending_tokens: requests that do not run yet, here or in the engine's own
        queue, and their prompt tokens.
    n_present: number of requests that have not left.
    last_arrival: arrival number of its last request, counted over all owners.
    served: tokens of service, divided by the weight.
    """

    __slots__ = (
        "last_arrival",
        "n_pending",
        "n_present",
        "name",
        "pending_tokens",
        "served",
        "waiting",
        "weight",
    )

    def __init__(self, share: QueueShare) -> None:
        self.name = share.name
        self.weight = share.weight
        self.waiting: list[QueuedRequest] = []
        self.n_pending = 0
        self.pending_tokens = 0
        self.n_present = 0
        self.last_arrival = 0
        self.served = 0.0

    def serve(self, tokens: int) -> None:
        self.served += tokens / self.weight


class RequestQueue:
    """The queue of one model.

    max_requests, max_tokens: maximum waiting requests and prompt tokens; a single
        prompt of any length may always wait.
    slots: maximum requests that the engine runs at once; None if unknown.
    limits_concurrency: at most `slots` requests are passed to the engine; otherwise the
        engine has its own queue.
    owner_tokens: tokens of one owner in an engine that works on all of its requests in
        turns; the owner's next request is held until fewer are left. An owner's first
        request is never held. None for engines that begin one request after another.
    window_tokens: prompt tokens of owners' requests that may wait in the engine's own
        queue, in which they are served in order of arrival; a prompt of any length may
        wait there alone. None if there is no limit.
    """

    def __init__(
        self,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        *,
        slots: int | None = None,
        limits_concurrency: bool = False,
        owner_tokens: int | None = None,
        window_tokens: int | None = None,
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._slots = slots
        self._concurrency = slots if limits_concurrency else None
        self._owner_tokens = owner_tokens
        self._window_tokens = window_tokens
        self._owners: dict[str, _Owner] = {}
        # Sums over the owners, kept up to date since there can be thousands of owners.
        self._n_waiting = self._n_pending = self._n_present = 0
        self._n_arrived = self._n_running = self._n_ended = 0
        # In the order in which they were passed to the engine.
        self._dispatched: dict[QueuedRequest, None] = {}
        self._dispatched_tokens = 0
        self._fast_rejections = 0
        self.rejections = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        """Number of rejected requests, by vLLM's name of the limit."""
        self._window = MIN_WINDOW
        self._capacity: int | None = None
        """Measured maximum of running requests, below `slots` if the engine's memory is
        full first; None if unknown.
        """
        self.waiting_tokens = 0
        """Prompt tokens of the requests that do not run yet."""

    @property
    def n_running(self) -> int:
        """Number of requests that the engine works on."""
        return self._n_running

    @property
    def n_held(self) -> int:
        """Number of requests that wait here and are not yet known to the engine."""
        return self._n_waiting

    def check_capacity(self, share: QueueShare = ONE_QUEUE) -> None:
        """Raise Overloaded if a prompt of any length would be rejected. This is cheap,
        so call it before rendering.
        """
        if self._fast_rejections:
            self._fast_rejections -= 1
            self.rejections["max_num_queued_reqs"] += 1
            raise QueueFull("The request queue is full; retry later.")
        # Nearly always there is room, whatever the number of free slots.
        if self._n_pending >= self._max_requests or self.waiting_tokens >= self._max_tokens:
            self._find_victims(share, 1)

    def enqueue(
        self, share: QueueShare, tokens: int, *, priority: int = 0, is_background: bool = False
    ) -> QueuedRequest:
        """Add a request.

        tokens: number of tokens of the prompt.
        priority: lower is earlier, among requests of the same owner.
        is_background: its turn comes after all others.

        Raises:
            Overloaded: the queue is full, and no request of another owner may be
                replaced.
        """
        # All victims are found before any is removed: if there are too few, the new
        # request is rejected and none leaves.
        if self._n_pending >= self._max_requests or (
            self.waiting_tokens and self.waiting_tokens + tokens > self._max_tokens
        ):
            for victim in self._find_victims(share, tokens):
                self.leave(victim, 0)
                victim.wake()
        owner = self._owners.get(share.name)
        if owner is None:
            owner = self._owners[share.name] = _Owner(share)
        owner.weight = share.weight  # It may have been changed.
        if not owner.n_present and self._n_present:
            # An owner that returns gets no credit for service that it did not use.
            # Otherwise a key that was idle for an hour could occupy the engine until
            # the others had caught up.
            present = [other.served for other in self._owners.values() if other.n_present]
            owner.served = max(owner.served, min(present, default=0))
        self._n_arrived += 1
        owner.last_arrival = self._n_arrived
        request = QueuedRequest(self, owner, tokens, (is_background, priority, self._n_arrived))
        # Nearly always: no request waits, so it is this one's turn.
        is_next = (
            not self._n_waiting
            and (self._concurrency is None or self._has_free_slot)
            and (not owner.name or self._may_be_dispatched(owner))
        )
        owner.n_present += 1
        self._n_present += 1
        owner.n_pending += 1
        self._n_pending += 1
        owner.pending_tokens += tokens
        self.waiting_tokens += tokens
        if is_next:
            self._pass_to_engine(request)
            return request
        # Nearly always an append: the order of arrival is the last part of the key.
        insort(owner.waiting, request, key=attrgetter("order"))
        self._n_waiting += 1
        self._dispatch()
        return request

    def start(self, request: QueuedRequest) -> None:
        if request.state is QueueState.DISPATCHED:
            self._leave_engine_queue(request)
            request.state = QueueState.RUNNING
            self._n_running += 1
            if self._n_waiting:
                self._window += 1
            # More run than when the engine was measured, so its memory has room again.
            if self._capacity is not None:
                self._capacity = max(self._capacity, self._n_running)
            self._fast_rejections = 0
            if self._n_waiting:
                self._dispatch()

    def leave(self, request: QueuedRequest, completion_tokens: int) -> None:
        owner = request.owner
        match request.state:
            case QueueState.LEFT:
                return
            case QueueState.WAITING:
                owner.waiting.remove(request)
                self._n_waiting -= 1
                owner.n_pending -= 1
                self._n_pending -= 1
                owner.pending_tokens -= request.tokens
                self.waiting_tokens -= request.tokens
            case QueueState.DISPATCHED:
                self._leave_engine_queue(request)
            case QueueState.RUNNING:
                self._measure_capacity()
                self._n_running -= 1
        # The engine has less work, so it may accept requests again. A request that only
        # waited here is unknown to it.
        if request.state is not QueueState.WAITING:
            self._fast_rejections = 0
        request.state = QueueState.LEFT
        owner.serve(COMPLETION_WEIGHT * completion_tokens)
        owner.n_present -= 1
        self._n_present -= 1
        if self._n_waiting:
            self._dispatch()
        if not self._n_present:
            # No requests compete any more, so past service does not count.
            self._owners.clear()

    def mark_full(self) -> None:
        """Reject the next requests at once, as the engine's queue is full.

        This ends when a request starts or ends, and after `FAST_REJECTIONS` rejections.
        """
        self._fast_rejections = FAST_REJECTIONS

    def _leave_engine_queue(self, request: QueuedRequest) -> None:
        owner = request.owner
        owner.n_pending -= 1
        self._n_pending -= 1
        owner.pending_tokens -= request.tokens
        self.waiting_tokens -= request.tokens
        del self._dispatched[request]
        self._dispatched_tokens -= request.tokens

    @property
    def _has_free_slot(self) -> bool:
        return (
            self._concurrency is None or len(self._dispatched) + self._n_running < self._concurrency
        )

    def _may_be_dispatched(self, owner: _Owner) -> bool:
        """Whether the owner's next request may be passed to the engine now.

        Requests without an owner always may: they take no turns, so the engine's own
        order suits them and none is held here.
        """
        return not (
            (len(self._owners) > 1 and self._has_only_reserve(owner)) or self._fills_window(owner)
        )

    def _dispatch(self) -> None:
        """Pass as many requests to the engine as the limits allow."""
        while self._n_waiting and self._has_free_slot:
            # Linear in the owners with waiting requests, which are few; a heap would
            # have to be updated with every change of `served`.
            owners = [owner for owner in self._owners.values() if owner.waiting]
            owner = owners[0] if len(owners) == 1 else min(owners, key=_get_turn)
            if owner.name and len(self._owners) > 1 and self._has_only_reserve(owner):
                owner = min(
                    (other for other in owners if not self._has_only_reserve(other)),
                    key=_get_turn,
                    default=None,
                )
                if owner is None:
                    return
            if owner.name and self._fills_window(owner):
                owner = min(
                    (other for other in owners if not self._fills_window(other)),
                    key=_get_turn,
                    default=None,
                )
                if owner is None:
                    return
            request = owner.waiting.pop(0)
            self._n_waiting -= 1
            self._pass_to_engine(request)
            request.wake()

    def _pass_to_engine(self, request: QueuedRequest) -> None:
        request.state = QueueState.DISPATCHED
        request.n_ended = self._n_ended
        self._dispatched[request] = None
        self._dispatched_tokens += request.tokens
        # Service is counted at dispatch: if it were counted at the end, an owner
        # could have any number of requests dispatched before that.
        request.owner.serve(max(1, request.tokens))

    def _fills_window(self, owner: _Owner) -> bool:
        """Whether no more of the owner's requests may be passed to the engine for now."""
        is_full = len(self._dispatched) >= self._compute_window() or (
            self._window_tokens is not None and self._dispatched_tokens >= self._window_tokens
        )
        if self._owner_tokens is None:
            return is_full
        tokens = [request.tokens for request in self._dispatched if request.owner is owner]
        return bool(tokens) and (is_full or sum(tokens) >= self._owner_tokens)

    def _compute_window(self) -> int:
        """Return how many requests may wait in the engine's own queue: at most half, so
        that others can be replaced.
        """
        window = min(
            self._window, max(MIN_WINDOW, self._n_running), max(1, self._max_requests // 2)
        )
        if self._slots is None:
            return window
        # If the engine is full, each of them waits until a running request ends, and
        # delays the next owner's turn.
        capacity = self._get_capacity(self._slots)
        return min(
            window, max(0, capacity - self._n_running) + max(1, capacity // SLOTS_PER_SUCCESSOR)
        )

    def _get_capacity(self, slots: int) -> int:
        return slots if self._capacity is None else min(slots, self._capacity)

    def _has_only_reserve(self, owner: _Owner) -> bool:
        """Whether only the reserve is free, and this owner already has its share of the
        engine.
        """
        if self._slots is None:
            return False
        capacity = self._get_capacity(self._slots)
        reserve = capacity // SLOTS_PER_RESERVED
        if not reserve or capacity - self._n_running - len(self._dispatched) > reserve:
            return False
        oldest = self._n_arrived - RECENT_ARRIVALS
        weights = sum(
            other.weight
            for other in self._owners.values()
            if other.n_present or other.last_arrival > oldest
        )
        # If no other owner has sent requests recently, the sum is this owner's weight,
        # and nothing is reserved.
        n_admitted = owner.n_present - len(owner.waiting)
        return weights > owner.weight and n_admitted * weights >= capacity * owner.weight

    def _measure_capacity(self) -> None:
        """Update the measured capacity when a running request has ended.

        The engine's memory may be full before its slots. Then requests keep waiting in
        the engine's own queue while others end, and the number of running requests is
        its capacity. The capacity grows again while none waits there.
        """
        self._n_ended += 1
        oldest = next(iter(self._dispatched), None)
        if oldest is not None:
            if self._n_ended - oldest.n_ended >= ENDS_OF_FULL_ENGINE:
                self._capacity = self._n_running
                self._window = MIN_WINDOW
        elif not self._n_waiting:
            self._capacity = None
        elif self._capacity is not None and self._n_ended % ENDS_OF_FULL_ENGINE == 0:
            self._capacity += 1

    def _find_victims(self, share: QueueShare, tokens: int) -> list[QueuedRequest]:
        """Return the requests that must leave so that one of this owner can wait.
        Raises Overloaded if too few may.
        """
        # Pending requests wait, or are about to start in a free slot. If the slots are
        # unknown, every request is pending for a moment.
        n_free = 0 if self._slots is None else max(0, self._slots - self._n_running)
        max_pending = (
            max(self._max_requests, 1) if self._slots is None else self._max_requests + n_free
        )
        excess_requests = self._n_pending + 1 - max_pending
        # A single prompt of any length may wait: otherwise one above the limit could
        # never be served.
        excess_tokens = (
            self.waiting_tokens + tokens - self._max_tokens if self.waiting_tokens else 0
        )
        victims: list[QueuedRequest] = []
        if excess_requests <= 0 and excess_tokens <= 0:
            return victims
        own = self._owners.get(share.name)
        own_requests, own_tokens = (
            (1, tokens) if own is None else (own.n_pending + 1, own.pending_tokens + tokens)
        )
        own_load = own_requests / share.weight, own_tokens / share.weight
        # Per other owner: number of requests that can leave, and requests and tokens
        # that would remain.
        others = {
            owner: [len(owner.waiting), owner.n_pending, owner.pending_tokens]
            for owner in self._owners.values()
            if owner is not own
        }
        while excess_requests > len(victims) or excess_tokens > 0:
            unit = 1 if excess_requests > len(victims) else 2
            candidates = (owner for owner in others if others[owner][0])
            greedy = max(
                candidates, key=lambda owner: others[owner][unit] / owner.weight, default=None
            )
            if greedy is None or others[greedy][unit] / greedy.weight <= own_load[unit - 1]:
                if unit == 2:
                    self.rejections["max_num_queued_tokens"] += 1
                    raise Overloaded(
                        f"{self.waiting_tokens} tokens of prompts are already queued; retry later."
                    )
                self.rejections["max_num_queued_reqs"] += 1
                raise QueueFull(f"{self._n_pending} requests are already queued; retry later.")
            remaining = others[greedy]
            # The owner's last waiting request, which it would serve last.
            victim = greedy.waiting[remaining[0] - 1]
            victims.append(victim)
            others[greedy] = [remaining[0] - 1, remaining[1] - 1, remaining[2] - victim.tokens]
            excess_tokens -= victim.tokens
        return victims


def _get_turn(owner: _Owner) -> tuple[bool, float, int]:
    """Return the sort key of an owner's turn: background requests last, then least
    service, then earliest arrival.
    """
    is_background, _, arrival = owner.waiting[0].order
    return is_background, owner.served, arrival


class QueueTicket(Struct, frozen=True):
    """A prepared request that is not enqueued yet. The fields are the arguments of
    `RequestQueue.enqueue`.
    """

    queue: RequestQueue
    share: QueueShare
    tokens: int
    priority: int = 0
    is_background: bool = False

    def enqueue(self) -> QueuedRequest:
        return self.queue.enqueue(
            self.share, self.tokens, priority=self.priority, is_background=self.is_background
        )
