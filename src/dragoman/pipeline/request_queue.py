"""The queue in front of a model's engine: bounds what waits, and shares the engine fairly between API keys.

A queue without bounds holds hours of work and any amount of memory. A first-come-first-served queue is filled by one
client that sends more than the engine can do, and all others are rejected. So each key has a queue of its own here:

- Order: the key that has received the least service for its weight is next. Service is measured in tokens, as in
  "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024): prompt tokens, and generated tokens twice.
- Reserve: an owner that has its share of a full engine already leaves the last places to the others. Without it these
  would wait until one of its requests ends, since a slot that a long generation holds cannot be taken back.
- Bounds: a request that finds the queue full replaces the last request of the key with the most waiting requests (or
  tokens) for its weight, if its own key has fewer; otherwise it is rejected.

Requests without an owner share one queue in order of arrival.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from enum import Enum

from msgspec import Struct

from ..core.errors import Overloaded, QueueFull

DEFAULT_MAX_REQUESTS = 2048
DEFAULT_MAX_TOKENS = 32 * 1024 * 1024
FAST_REJECTIONS = 50
"""Rejections after which one request is passed to the engine again."""
MIN_WINDOW = 16
"""Requests of owners that may wait in the engine's own first-come-first-served queue at first: each of them delays the
next key's turn. One more for each that starts while others are held here, so that an engine that begins any number of
requests in a step gets them; as few as this again where they do not start."""
SLOTS_PER_SUCCESSOR = 32
"""Running requests of a full engine for each that waits in its queue, to take the place of one that ends."""
SLOTS_PER_RESERVED = 16
"""Requests that the engine can run for each place that is reserved for owners below their share. While one key alone
fills the engine, the reserve is idle."""
RECENT_ARRIVALS = 1024
"""An owner shares the engine with others until so many requests have arrived after its last one."""
ENDS_OF_FULL_ENGINE = 16
"""Requests that end while another waits in the engine's own queue: then what runs is all that the engine can run."""
COMPLETION_WEIGHT = 2
"""Service of one generated token, in prompt tokens."""


class QueueShare(Struct, frozen=True):
    """The share of an API key in an engine.

    name: the key; empty where all requests share one queue.
    weight: a key of weight 2 receives twice the service of one of weight 1 while both have requests waiting.
    """

    name: str = ""
    weight: float = 1.0


ONE_QUEUE = QueueShare()


class _State(Enum):
    WAITING = "waiting"
    DISPATCHED = "dispatched"
    """In the engine's own queue."""
    RUNNING = "running"
    LEFT = "left"


class QueuedRequest:
    """One request's place. Created by `RequestQueue.enqueue`; `leave` must follow, whatever happens.

    tokens: of the prompt.
    n_ended: requests of the queue that had ended when this one was dispatched.
    """

    __slots__ = ("_queue", "_waiter", "n_ended", "order", "owner", "state", "tokens")

    def __init__(self, queue: RequestQueue, owner: _Owner, tokens: int, order: tuple[bool, int, int]) -> None:
        self._queue, self.owner, self.tokens, self.order = queue, owner, tokens, order
        self.state = _State.WAITING
        self.n_ended = 0
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_turn(self) -> None:
        """Wait until the request may be passed to the engine. Raises QueueFull where another key took its place."""
        if self.state is _State.WAITING:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.state is _State.LEFT:
            raise QueueFull("The request queue is full, and other keys have fewer requests in it; retry later.")

    def start(self) -> None:
        """The engine has begun to work on the request."""
        self._queue.start(self)

    def leave(self, completion_tokens: int = 0) -> None:
        """The request has ended, in whatever state."""
        self._queue.leave(self, completion_tokens)

    def wake(self) -> None:
        """Its state has changed."""
        if self._waiter is not None and not self._waiter.done():  # A cancelled request's waiter is done.
            self._waiter.set_result(None)


class _Owner:
    """One key: its waiting requests, and the service that it has received.

    waiting: not dispatched, in the order of their turns.
    n_pending, pending_tokens: not running: waiting here or in the engine's own queue.
    n_present: all requests that have not left.
    last_arrival: the number of its last request among all that have arrived.
    served: tokens of service, divided by the weight.
    """

    __slots__ = ("last_arrival", "n_pending", "n_present", "name", "pending_tokens", "served", "waiting", "weight")

    def __init__(self, share: QueueShare) -> None:
        self.name, self.weight = share.name, share.weight
        self.waiting: list[QueuedRequest] = []
        self.n_pending = self.pending_tokens = self.n_present = self.last_arrival = 0
        self.served = 0.0

    def serve(self, tokens: int) -> None:
        self.served += tokens / self.weight


class RequestQueue:
    """The queue of one model.

    max_requests, max_tokens: requests and prompt tokens that may wait; a single prompt of any length may always wait.
    slots: requests that the engine runs at once; None if that is unknown.
    limits_concurrency: no more than `slots` are passed to the engine; otherwise it has a queue of its own.
    """

    def __init__(
        self,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        *,
        slots: int | None = None,
        limits_concurrency: bool = False,
    ) -> None:
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self._slots = slots
        self._concurrency = slots if limits_concurrency else None
        self._owners: dict[str, _Owner] = {}
        # Sums over the owners, of which there can be thousands.
        self._n_waiting = self._n_pending = self._n_present = 0
        self._n_arrived = self._n_running = self._n_ended = 0
        # In the order in which the engine got them.
        self._dispatched: dict[QueuedRequest, None] = {}
        self._fast_rejections = 0
        self._window = MIN_WINDOW
        self._capacity: int | None = None
        """Requests that the engine can run at once, if it was full; less than its slots where its memory is full."""
        self.waiting_tokens = 0
        """Prompt tokens of the requests that do not run yet."""

    @property
    def n_held(self) -> int:
        """Requests that wait here, and that the engine does not know yet."""
        return self._n_waiting

    def check_capacity(self, share: QueueShare = ONE_QUEUE) -> None:
        """Raise Overloaded where a prompt of any length would be rejected. Cheap: call it before rendering."""
        if self._fast_rejections:
            self._fast_rejections -= 1
            raise QueueFull("The request queue is full; retry later.")
        self._find_victims(share, 1)

    def enqueue(
        self, share: QueueShare, tokens: int, *, priority: int = 0, is_background: bool = False
    ) -> QueuedRequest:
        """Add a request.

        priority: lower is earlier, among requests of the same owner.
        is_background: its turn comes after all others.

        Raises:
            Overloaded: the queue is full, and its owner has no claim to the place of another request.
        """
        # Found first, and only then removed: if there are not enough of them, the new request is rejected and none
        # leaves.
        for victim in self._find_victims(share, tokens):
            self.leave(victim, 0)
            victim.wake()
        owner = self._owners.get(share.name)
        if owner is None:
            owner = self._owners[share.name] = _Owner(share)
        owner.weight = share.weight  # It may have been changed.
        if not owner.n_present:
            # An owner that returns does not keep a claim to the service that it did not use. Otherwise a key that was
            # idle for an hour could take the engine for itself until the others had caught up.
            present = [other.served for other in self._owners.values() if other.n_present]
            owner.served = max(owner.served, min(present, default=0))
        self._n_arrived += 1
        owner.last_arrival = self._n_arrived
        request = QueuedRequest(self, owner, tokens, (is_background, priority, self._n_arrived))
        # Nearly always an append: the order of arrival is the last part of the key.
        insort(owner.waiting, request, key=_get_order)
        self._n_waiting += 1
        owner.n_present += 1
        self._n_present += 1
        owner.n_pending += 1
        self._n_pending += 1
        owner.pending_tokens += tokens
        self.waiting_tokens += tokens
        self._dispatch()
        return request

    def start(self, request: QueuedRequest) -> None:
        if request.state is _State.DISPATCHED:
            self._leave_pending(request)
            request.state = _State.RUNNING
            del self._dispatched[request]
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
            case _State.LEFT:
                return
            case _State.WAITING:
                owner.waiting.remove(request)
                self._n_waiting -= 1
                self._leave_pending(request)
            case _State.DISPATCHED:
                self._leave_pending(request)
                del self._dispatched[request]
            case _State.RUNNING:
                self._measure_capacity()
                self._n_running -= 1
        # The engine has less to do, so it may accept a request again; one that only waited here changes nothing for it.
        if request.state is not _State.WAITING:
            self._fast_rejections = 0
        request.state = _State.LEFT
        owner.serve(COMPLETION_WEIGHT * completion_tokens)
        owner.n_present -= 1
        self._n_present -= 1
        if self._n_waiting:
            self._dispatch()
        if not self._n_present:
            # No requests compete: service that was received before does not count.
            self._owners.clear()

    def mark_full(self) -> None:
        """The engine's queue is full: reject the next requests at once, until a request ends or the engine was
        tried again.
        """
        self._fast_rejections = FAST_REJECTIONS

    def _leave_pending(self, request: QueuedRequest) -> None:
        request.owner.n_pending -= 1
        self._n_pending -= 1
        request.owner.pending_tokens -= request.tokens
        self.waiting_tokens -= request.tokens

    def _dispatch(self) -> None:
        """Pass requests to the engine, as many as may be there."""
        while self._n_waiting and (
            self._concurrency is None or len(self._dispatched) + self._n_running < self._concurrency
        ):
            # Linear in the keys that have requests here, which are few; a heap would have to follow every change of
            # `served`.
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
            # Requests without an owner take no turns, so the engine's own order is right for them and nothing is held
            # here.
            if owner.name and len(self._dispatched) >= self._compute_window():
                return
            request = owner.waiting.pop(0)
            self._n_waiting -= 1
            request.state = _State.DISPATCHED
            request.n_ended = self._n_ended
            self._dispatched[request] = None
            # Counted when it is dispatched: if it counted at its end, a key could pass on any number of requests before
            # that.
            owner.serve(max(1, request.tokens))
            request.wake()

    def _compute_window(self) -> int:
        """Requests that may wait in the engine's own queue. At most half of all, so that others can be replaced."""
        window = min(self._window, max(MIN_WINDOW, self._n_running), max(1, self._max_requests // 2))
        if self._slots is None:
            return window
        # In a full engine each of them waits until another request ends, and with it the next key's turn.
        capacity = self._get_capacity(self._slots)
        return min(window, max(0, capacity - self._n_running) + max(1, capacity // SLOTS_PER_SUCCESSOR))

    def _get_capacity(self, slots: int) -> int:
        return slots if self._capacity is None else min(slots, self._capacity)

    def _has_only_reserve(self, owner: _Owner) -> bool:
        """Whether nothing but the reserve is free, and this owner has its share of the engine."""
        if self._slots is None:
            return False
        capacity = self._get_capacity(self._slots)
        reserve = capacity // SLOTS_PER_RESERVED
        if not reserve or capacity - self._n_running - len(self._dispatched) > reserve:
            return False
        oldest = self._n_arrived - RECENT_ARRIVALS
        weights = sum(other.weight for other in self._owners.values() if other.n_present or other.last_arrival > oldest)
        # All weights are its own where no other owner has sent requests lately: then nothing is reserved.
        n_admitted = owner.n_present - len(owner.waiting)
        return weights > owner.weight and n_admitted * weights >= capacity * owner.weight

    def _measure_capacity(self) -> None:
        """A running request has ended. Memory can be full before the slots are: then what the engine has got waits
        while requests end, and no more can run than do. What was measured once grows again while nothing waits there.
        """
        self._n_ended += 1
        oldest = next(iter(self._dispatched), None)
        if oldest is not None:
            if self._n_ended - oldest.n_ended >= ENDS_OF_FULL_ENGINE:
                self._capacity, self._window = self._n_running, MIN_WINDOW
        elif not self._n_waiting:
            self._capacity = None
        elif self._capacity is not None and self._n_ended % ENDS_OF_FULL_ENGINE == 0:
            self._capacity += 1

    def _find_victims(self, share: QueueShare, tokens: int) -> list[QueuedRequest]:
        """The requests that have to leave so that one of this owner can wait. Raises Overloaded where none may."""
        # Pending are requests that wait, and those that start in a free slot. Where the slots are unknown, every
        # request is pending for an instant.
        n_free = 0 if self._slots is None else max(0, self._slots - self._n_running)
        max_pending = max(self._max_requests, 1) if self._slots is None else self._max_requests + n_free
        excess_requests = self._n_pending + 1 - max_pending
        # A single prompt of any length may wait: otherwise one above the limit could never be served.
        excess_tokens = self.waiting_tokens + tokens - self._max_tokens if self.waiting_tokens else 0
        victims: list[QueuedRequest] = []
        if excess_requests <= 0 and excess_tokens <= 0:
            return victims
        own = self._owners.get(share.name)
        own_requests, own_tokens = (1, tokens) if own is None else (own.n_pending + 1, own.pending_tokens + tokens)
        own_load = own_requests / share.weight, own_tokens / share.weight
        # Of each other owner: requests that can leave, requests and tokens that would remain.
        others = {
            owner: [len(owner.waiting), owner.n_pending, owner.pending_tokens]
            for owner in self._owners.values()
            if owner is not own
        }
        while excess_requests > len(victims) or excess_tokens > 0:
            unit = 1 if excess_requests > len(victims) else 2
            candidates = (owner for owner in others if others[owner][0])
            greedy = max(candidates, key=lambda owner: others[owner][unit] / owner.weight, default=None)
            if greedy is None or others[greedy][unit] / greedy.weight <= own_load[unit - 1]:
                if unit == 2:
                    raise Overloaded(f"{self.waiting_tokens} tokens of prompts are already queued; retry later.")
                raise QueueFull(f"{self._n_pending} requests are already queued; retry later.")
            remaining = others[greedy]
            # The last one: it has waited the shortest time for its place in this owner's order.
            victim = greedy.waiting[remaining[0] - 1]
            victims.append(victim)
            others[greedy] = [remaining[0] - 1, remaining[1] - 1, remaining[2] - victim.tokens]
            excess_tokens -= victim.tokens
        return victims


def _get_order(request: QueuedRequest) -> tuple[bool, int, int]:
    return request.order


def _get_turn(owner: _Owner) -> tuple[bool, float, int]:
    """Requests in the background come last; then the owner that was served least; then the one that came first."""
    is_background, _, arrival = owner.waiting[0].order
    return is_background, owner.served, arrival


class QueueTicket(Struct, frozen=True):
    """The place of a prepared request that is not enqueued yet. The fields are those of `RequestQueue.enqueue`."""

    queue: RequestQueue
    share: QueueShare
    tokens: int
    priority: int = 0
    is_background: bool = False

    def enqueue(self) -> QueuedRequest:
        return self.queue.enqueue(self.share, self.tokens, priority=self.priority, is_background=self.is_background)
