"""The queue in front of an engine: its limits and its order. Tests advance the time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from dragoman.core.errors import Overloaded, QueueFull
from dragoman.pipeline.request_queue import (
    FAST_REJECTIONS,
    MIN_WINDOW,
    ONE_QUEUE,
    RECENT_ARRIVALS,
    SLOTS_PER_RESERVED,
    SLOTS_PER_SUCCESSOR,
    QueuedRequest,
    QueueShare,
    RequestQueue,
)


class Engine:
    """An engine with `slots` concurrent requests and its own FIFO queue."""

    def __init__(
        self, queue: RequestQueue, slots: int, weights: Mapping[str, float] | None = None
    ) -> None:
        self.queue = queue
        self.slots = slots
        self.weights = weights or {}
        self.inside: list[tuple[str, QueuedRequest]] = []
        self.running: list[tuple[str, QueuedRequest]] = []
        self.refused: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(
        self, owner: str, tokens: int = 1, *, priority: int = 0, background: bool = False
    ) -> None:
        try:
            place = self.queue.enqueue(
                QueueShare(owner, self.weights.get(owner, 1)),
                tokens,
                priority=priority,
                is_background=background,
            )
        except Overloaded:
            self.refused[owner] += 1
            return
        task = asyncio.create_task(self._enter(owner, place))
        self._tasks.add(task)
        await asyncio.sleep(0)

    async def _enter(self, owner: str, place: QueuedRequest) -> None:
        try:
            await place.wait_for_turn()
        except QueueFull:
            self.refused[owner] += 1
            place.leave()
        else:
            self.inside.append((owner, place))

    async def begin(self) -> None:
        """Fill the free slots."""
        while len(self.running) < self.slots and self.inside:
            owner, place = self.inside.pop(0)
            place.start()
            self.running.append((owner, place))
            await asyncio.sleep(0)

    async def end(self, completion_tokens: int = 1) -> None:
        """End the request that has run longest, and start others."""
        owner, place = self.running.pop(0)
        place.leave(completion_tokens)
        self.served[owner] += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await self.begin()


async def test_greedy_key_does_not_starve_others() -> None:
    """One key sends ten times the engine's capacity, another half of it: all requests
    of the latter are served.
    """
    queue = RequestQueue(16, slots=4)
    engine = Engine(queue, 4)
    submitted = 0
    for turn in range(400):
        for _ in range(10):
            await engine.ask("greedy")
        if turn % 2:
            await engine.ask("modest")
            submitted += 1
        await engine.begin()
        await engine.end()
    assert engine.refused["modest"] == 0
    assert engine.served["modest"] >= submitted - 16
    assert engine.served["greedy"] + engine.served["modest"] == 400


@pytest.mark.parametrize("owners", [2, 3, 5])
async def test_overloading_keys_are_served_equally(owners: int) -> None:
    queue = RequestQueue(20, slots=4)
    engine = Engine(queue, 4)
    for _ in range(100 * owners):
        for number in range(owners):
            for _ in range(1 + 3 * number):
                await engine.ask(f"key {number}")
        await engine.begin()
        await engine.end()
    counts = [engine.served[f"key {number}"] for number in range(owners)]
    assert max(counts) - min(counts) <= 20


async def test_queue_fairness_counts_tokens_not_requests() -> None:
    """A key with prompts of 30 tokens gets a third of the requests of a key with
    prompts of 10.
    """
    queue = RequestQueue(400, slots=2)
    engine = Engine(queue, 2)
    for _ in range(150):
        await engine.ask("long", 30)
        await engine.ask("short", 10)
    await engine.begin()
    for _ in range(80):
        await engine.end(0)
    assert 2.5 < engine.served["short"] / engine.served["long"] < 3.5


async def test_key_is_served_in_proportion_to_weight() -> None:
    queue = RequestQueue(400, slots=2)
    engine = Engine(queue, 2, weights={"heavy": 3})
    for _ in range(150):
        await engine.ask("heavy", 10)
        await engine.ask("light", 10)
    await engine.begin()
    for _ in range(120):
        await engine.end(0)
    assert 2.5 < engine.served["heavy"] / engine.served["light"] < 3.5


async def test_full_queue_is_shared_in_proportion_to_weights() -> None:
    queue = RequestQueue(12, slots=1, limits_concurrency=True)
    engine = Engine(queue, 1, weights={"heavy": 2})
    for _ in range(40):
        await engine.ask("light")
        await engine.ask("heavy")
    waiting = Counter({"heavy": 40, "light": 40}) - engine.refused
    assert 7 <= waiting["heavy"] <= 9
    assert 3 <= waiting["light"] <= 5


async def test_queue_fairness_counts_generated_tokens_twice() -> None:
    """The prompts are equal; one key's answers are longer by 9 tokens, which count as
    18.
    """
    queue = RequestQueue(400, slots=1, limits_concurrency=True)
    engine = Engine(queue, 1)
    for _ in range(200):
        await engine.ask("wordy", 2)
        await engine.ask("terse", 2)
    await engine.begin()
    for _ in range(110):
        await engine.end(9 if engine.running[0][0] == "wordy" else 0)
    assert 8 < engine.served["terse"] / engine.served["wordy"] < 12


async def test_idle_key_accumulates_no_credit() -> None:
    queue = RequestQueue(400, slots=1)
    engine = Engine(queue, 1)
    for _ in range(100):
        await engine.ask("busy")
    await engine.begin()
    for _ in range(40):
        await engine.end()
    for _ in range(40):
        await engine.ask("late")
    before = engine.served["busy"]
    for _ in range(2 * MIN_WINDOW + 20):
        await engine.end()
    assert engine.served["late"] <= engine.served["busy"] - before + 1


async def test_full_queue_drops_request_of_largest_key() -> None:
    queue = RequestQueue(8)
    engine = Engine(queue, 0)
    for _ in range(8):
        await engine.ask("a")
    await engine.ask("a")
    assert engine.refused == {"a": 1}
    for _ in range(4):
        await engine.ask("b")
    await asyncio.sleep(0)
    assert engine.refused == {"a": 5}
    await engine.ask("b")
    assert engine.refused == {"a": 5, "b": 1}
    await engine.ask("c")
    await asyncio.sleep(0)
    assert engine.refused["c"] == 0
    with pytest.raises(QueueFull):
        queue.check_capacity(QueueShare("a"))


async def test_full_queue_shares_tokens_like_slots() -> None:
    queue = RequestQueue(100, 100)
    engine = Engine(queue, 0)
    for _ in range(60):
        await engine.ask("a", 5)
    assert queue.waiting_tokens == 100
    assert engine.refused == {"a": 40}
    await engine.ask("b", 20)
    await asyncio.sleep(0)
    assert engine.refused == {"a": 44}
    assert queue.waiting_tokens == 100
    # A request whose key would then have more than the other is rejected, and displaces
    # no other request.
    await engine.ask("b", 70)
    assert engine.refused == {"a": 44, "b": 1}


async def test_single_prompt_over_token_limit_is_queued() -> None:
    queue = RequestQueue(10, 10)
    queue.enqueue(ONE_QUEUE, 500)
    with pytest.raises(Overloaded):
        queue.enqueue(ONE_QUEUE, 1)


async def test_requests_without_key_bypass_queue_and_are_bounded() -> None:
    queue = RequestQueue(3, slots=2)
    engine = Engine(queue, 2)
    for _ in range(7):
        await engine.ask("")
    assert len(engine.inside) == 5
    assert engine.refused == {"": 2}
    assert queue.n_held == 0


async def test_keyed_requests_waiting_in_engine_are_limited() -> None:
    queue = RequestQueue(1000, slots=64)
    engine = Engine(queue, 64)
    for _ in range(300):
        await engine.ask("a")
    assert len(engine.inside) == MIN_WINDOW
    await engine.begin()
    for _ in range(5):
        await engine.begin()
    assert len(engine.running) == 64
    # Enough to replace those that end in one step; the others wait in the queue, in
    # which other keys may go first.
    assert len(engine.inside) == 64 // SLOTS_PER_SUCCESSOR
    assert queue.n_held == 300 - 64 - 2


async def test_engine_window_shrinks_when_memory_is_exhausted() -> None:
    queue = RequestQueue(1000, slots=256)
    engine = Engine(queue, 64)
    for _ in range(600):
        await engine.ask("a")
    for _ in range(4):
        await engine.begin()
    assert (len(engine.running), len(engine.inside)) == (64, 64)
    for _ in range(64 + 64):
        await engine.end()
    assert (len(engine.running), len(engine.inside)) == (64, 2)
    # It has free memory again: waiting requests follow at once.
    engine.slots = 256
    for _ in range(100):
        await engine.begin()
        await asyncio.sleep(0)
    assert len(engine.running) > 200


async def fill(queue: RequestQueue, engine: Engine) -> None:
    """Fill the engine with requests of `greedy`, except for one request of `b`."""
    await engine.ask("b")
    for _ in range(600):
        await engine.ask("greedy")
    for _ in range(20):
        await engine.begin()
        await asyncio.sleep(0)


async def test_reserved_slots_are_for_keys_below_share() -> None:
    queue = RequestQueue(1000, slots=64)
    engine = Engine(queue, 64)
    await fill(queue, engine)
    assert len(engine.running) == 64 - 64 // SLOTS_PER_RESERVED
    assert not engine.inside
    for owner in ("b", "c", "b", "c"):
        await engine.ask(owner)
        await engine.begin()
    assert len(engine.running) == 64
    assert [owner for owner, _ in engine.running[-4:]] == ["b", "c", "b", "c"]
    # Slots that become free are reserved again.
    for _ in range(20):
        await engine.end()
    assert len(engine.running) == 60


async def test_absent_keys_get_no_reserved_slots() -> None:
    queue = RequestQueue(5000, slots=64)
    engine = Engine(queue, 64)
    await fill(queue, engine)
    for _ in range(RECENT_ARRIVALS):
        await engine.ask("greedy")
        await engine.end()
    await engine.begin()
    assert len(engine.running) == 64


async def test_reserved_slots_do_not_limit_capacity_growth() -> None:
    """An engine with more memory than measured gets more requests, although a part is
    always reserved.
    """
    queue = RequestQueue(5000, slots=256)
    engine = Engine(queue, 64)
    await fill(queue, engine)
    for _ in range(200):
        await engine.ask("greedy")
        await engine.end()
    assert len(engine.running) <= 64
    engine.slots = 128
    for _ in range(800):
        await engine.ask("b" if len(engine.running) < 3 else "greedy")
        await engine.end()
    assert len(engine.running) > 90


@pytest.mark.parametrize("owner", ["", "a"])
async def test_engine_without_queue_gets_only_runnable_requests(owner: str) -> None:
    queue = RequestQueue(5, slots=3, limits_concurrency=True)
    engine = Engine(queue, 3)
    for _ in range(10):
        await engine.ask(owner)
    await engine.begin()
    assert (len(engine.inside) + len(engine.running), queue.n_held) == (3, 5)
    assert engine.refused == {owner: 2}
    for _ in range(8):
        await engine.end()
        assert len(engine.inside) + len(engine.running) <= 3
    assert engine.served == {owner: 8}


async def test_background_requests_run_last_and_priority_is_per_key() -> None:
    queue = RequestQueue(100, slots=1, limits_concurrency=True)
    engine = Engine(queue, 1)
    await engine.ask("first")
    order = [("a", 5, True), ("a", 9, False), ("a", 1, False), ("b", 7, False), ("b", 0, True)]
    for owner, priority, background in order:
        await engine.ask(owner, 10 + priority, priority=priority, background=background)
    seen: list[tuple[str, int]] = []
    await engine.begin()
    for _ in order:
        await engine.end(0)
        owner, place = engine.running[0]
        seen.append((owner, place.tokens - 10))
    assert seen == [("a", 1), ("b", 7), ("a", 9), ("b", 0), ("a", 5)]


async def test_cancellation_in_any_state_frees_resources() -> None:
    queue = RequestQueue(4, 100, slots=1, limits_concurrency=True)
    waiting = [queue.enqueue(QueueShare("a"), 10) for _ in range(4)]
    turn = asyncio.create_task(waiting[2].wait_for_turn())
    await asyncio.sleep(0)
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    waiting[2].leave()
    waiting[2].leave()
    waiting[0].start()
    waiting[0].leave()
    await waiting[1].wait_for_turn()
    waiting[3].leave()
    waiting[1].leave()
    assert (queue.waiting_tokens, queue.n_held) == (0, 0)
    queue.enqueue(QueueShare("b"), 100)


async def test_owner_tokens_hold_next_request_but_never_first() -> None:
    engine = Engine(RequestQueue(owner_tokens=100), slots=0)
    for _ in range(8):
        await engine.ask("a", 60)
    await engine.ask("b", 5_000)
    await engine.ask("b", 1)
    await engine.ask("c", 1)
    assert [owner for owner, _ in engine.inside] == ["a", "a", "b", "c"]
    engine.inside[0][1].leave()
    await asyncio.sleep(0)
    assert [owner for owner, _ in engine.inside] == ["a", "a", "b", "c", "a"]


async def test_owner_tokens_do_not_hold_requests_without_owner() -> None:
    engine = Engine(RequestQueue(owner_tokens=100), slots=0)
    for _ in range(30):
        await engine.ask("", 60)
    assert len(engine.inside) == 30


async def test_window_tokens_hold_long_prompts_of_all_owners() -> None:
    engine = Engine(RequestQueue(window_tokens=100), slots=1)
    for _ in range(8):
        await engine.ask("a", 60)
    await engine.ask("b", 5_000)
    assert [owner for owner, _ in engine.inside] == ["a", "a"]
    await engine.begin()
    await engine.end()
    # The owner that was served less is next, however long its prompt is.
    assert [owner for owner, _ in engine.inside] == ["a", "b"]
    for _ in range(8):
        await engine.end()
    assert engine.served == {"a": 8, "b": 1}
    assert engine.queue.n_held == 0


async def test_window_tokens_let_any_prompt_wait_alone() -> None:
    engine = Engine(RequestQueue(window_tokens=100), slots=0)
    await engine.ask("a", 5_000)
    await engine.ask("b", 1)
    assert [owner for owner, _ in engine.inside] == ["a"]
    engine.inside.pop()[1].leave()
    await asyncio.sleep(0)
    assert [owner for owner, _ in engine.inside] == ["b"]


async def test_full_engine_is_retried_after_fast_rejections() -> None:
    queue = RequestQueue()
    queue.mark_full()
    refusals = 0
    while True:
        try:
            queue.check_capacity()
        except QueueFull:
            refusals += 1
        else:
            break
    assert refusals == FAST_REJECTIONS
