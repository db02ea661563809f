"""For any sequence of operations, a durable store returns the same results as the one
in memory.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from dragoman.store import (
    Append,
    Bounds,
    Change,
    CommitConflict,
    Delete,
    Item,
    Key,
    MemoryStore,
    Put,
    Record,
    RecordChain,
    Remove,
    Replace,
    SqliteStore,
    Store,
    StoreFull,
)
from dragoman.store.postgres import PostgresStore

from .backends import Clock

T = TypeVar("T")

BOUNDS = Bounds(records=4, nbytes=60, ttl=20)
IDS = st.sampled_from(["a", "b", "c", "d"])
KEYS = st.builds(Key, st.sampled_from(["me", "you"]), st.just("k"), IDS)
BODIES = st.sampled_from([b"", b"1", b"22222", b"x" * 20])
STATES = st.sampled_from(["s", "t"])
EXPECTED = st.frozensets(STATES, max_size=1)
SERIES = st.sampled_from(["x", "y"])
ITEMS = st.lists(st.builds(Item, BODIES, st.none() | IDS), max_size=3).map(tuple)
RUNS = st.sampled_from([None, None, "own"])
CHANGES = st.one_of(
    st.builds(
        Put, KEYS, st.just(1), BODIES, state=STATES, parent=st.none() | IDS, run=RUNS,
        pinned=st.booleans(),
        expires=st.none() | st.integers(1, 30).map(lambda left: 1_700_000_000.0 + left),
    ),
    st.builds(Replace, KEYS, STATES, BODIES, run=RUNS, states=EXPECTED,
    version=st.none() | st.integers(1, 3)),
    st.builds(Append, KEYS, SERIES, ITEMS, states=EXPECTED),
    st.builds(Remove, KEYS, SERIES, IDS),
    st.builds(Delete, KEYS, states=EXPECTED),
)  # fmt: skip
CURSORS = st.none() | st.integers(-1, 8)


class StorePair(RuleBasedStateMachine):
    """Runs each operation on both stores. The clock advances at every step, so that LRU
    order is unique.
    """

    durable: Any
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.model = MemoryStore(BOUNDS, now=self.clock)
        self.store: Store

    @initialize()
    def open(self) -> None:
        self.store = type(self).durable(next(self.numbers), self.clock)
        for store in (self.model, self.store):
            store.share(lambda: ["me", "you"])
        self.run(self.store.open())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def both(self, name: str, *args: Any, **more: Any) -> None:
        self.clock.time += 0.25
        expected, found = (
            self.run(getattr(store, name)(*args, **more)) for store in (self.model, self.store)
        )
        assert renumber(found) == renumber(expected)

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=4))
    def commit(self, changes: list[Change]) -> None:
        self.clock.time += 0.25
        assert self.run(outcome(self.store, changes)) == self.run(outcome(self.model, changes))

    @rule(key=KEYS)
    def get(self, key: Key) -> None:
        self.both("get", key)

    @rule(key=KEYS)
    def chain(self, key: Key) -> None:
        self.both("load_chain", key)

    @rule(owner=st.sampled_from(["me", "you"]), limit=st.integers(0, 3), descending=st.booleans())
    def page(self, owner: str, limit: int, descending: bool) -> None:
        self.both("load_page", owner, "k", limit=limit, descending=descending)

    @rule(key=KEYS, series=SERIES, after=CURSORS, limit=st.integers(0, 3), descending=st.booleans())
    def entries(
        self, key: Key, series: str, after: int | None, limit: int, descending: bool
    ) -> None:
        self.both("load_entries", key, series, after=after, limit=limit, descending=descending)

    @rule(key=KEYS, series=SERIES, id=IDS)
    def entry(self, key: Key, series: str, id: str) -> None:
        self.both("load_entry", key, series, id)

    @rule(limit=st.integers(0, 4))
    def clean(self, limit: int) -> None:
        self.both("clean", limit)

    @rule(seconds=st.integers(1, 12))
    def pass_time(self, seconds: int) -> None:
        # Reads are recorded at the next cleanup; a server cleans up more often than
        # records expire.
        self.run(self.store.clean(0))
        self.clock.time += seconds

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()


async def outcome(store: Store, changes: list[Change]) -> object:
    """Return the outcome of a commit; `own` in a change is replaced by the store's own
    run.
    """
    own = [
        replace(change, run=store.run)
        if isinstance(change, Put | Replace) and change.run
        else change
        for change in changes
    ]
    try:
        await store.commit(*own)
    except CommitConflict as refused:
        return own.index(refused.change), refused.found_state
    except StoreFull:
        return "full"
    return "done"


def renumber(found: object) -> object:
    """Replace values that differ between stores: positions of records, and the run."""
    if isinstance(found, tuple):
        return [renumber(each) for each in cast("tuple[object, ...]", found)]
    if isinstance(found, RecordChain):
        return renumber(found.records), found.is_complete
    if isinstance(found, Record):
        return replace(found, position=0, run=found.run and "own")
    return found


@pytest.mark.hypothesis
def test_sqlite_store_matches_memory_store(tmp_path: Path):
    class Machine(StorePair):
        @staticmethod
        def durable(number: int, now: Clock) -> Store:
            return SqliteStore(tmp_path / f"{number}.db", BOUNDS, synchronous="NORMAL", now=now)

    run_state_machine_as_test(Machine)  # pyright: ignore[reportUnknownMemberType]


@pytest.fixture
def postgres_stores(postgres_server: str) -> Any:
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]

    def make(number: int, now: Clock) -> Store:
        async def create() -> None:
            connection = await asyncpg.connect(postgres_server)  # pyright: ignore
            await connection.execute(f"CREATE SCHEMA machine{number}")  # pyright: ignore
            await connection.close()  # pyright: ignore

        asyncio.run(create())
        return PostgresStore(f"{postgres_server}&search_path=machine{number}", BOUNDS, now=now)

    return make


@pytest.mark.hypothesis
def test_postgres_store_matches_memory_store(postgres_stores: Any):
    class Machine(StorePair):
        durable = staticmethod(postgres_stores)

    run_state_machine_as_test(Machine)  # pyright: ignore[reportUnknownMemberType]
