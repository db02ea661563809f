"""What a store is: records with ordered entries, changed atomically, each its owner's own. Knows no feature.

Responses, conversations, files and batches are all a `Record` and, where they have many parts, `Entry`s in named
series. What they mean is told above; here is only what must survive a crash and be the same in every backend.

An owner is part of every key, so that a foreign record cannot be told from an absent one.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..core.errors import BodyTooLarge, EngineError

UNCLAIMED_RUN = "run_" + 32 * "0"
"""The run of work that no process has taken yet: `Store.lapsed` finds it."""


class StoreUnavailable(EngineError):
    """The disk is full, the file is locked, the database is gone. Nothing of the change was kept."""

    status, code = 503, "store_unavailable"


class StoreFull(BodyTooLarge):
    """What may not be evicted (`pinned`) has no room."""

    code = "storage_limit_exceeded"


class Key(Struct, frozen=True):
    """Which record. kind: `response`, `file`, ... id: unique within owner and kind."""

    owner: str
    kind: str
    id: str


class Record(Struct, frozen=True):
    """What a read gives.

    position: grows with every record put into the store: the order of lists, and their cursor. version: grows with
    every Replace. created, expires: Unix seconds. state: a word, for compare-and-set. parent: id of the record of
    the same owner and kind that this one continues. run: the process that works on it (`Store.run`).
    pinned: not evicted for want of room.
    """

    key: Key
    position: int
    version: int
    created: int
    state: str
    body: bytes
    parent: str | None = None
    run: str | None = None
    expires: float | None = None
    pinned: bool = False


class SeriesEntry(Struct, frozen=True):
    """One of a series of a record. position: 0, 1, 2, ... in order of appending; id: unique in its series."""

    position: int
    body: bytes
    id: str | None = None


class Item(Struct, frozen=True):
    """What is appended; its position is the store's business."""

    body: bytes
    id: str | None = None


class Put(Struct, frozen=True):
    """A new record. Refused where its key exists. Fields as in Record."""

    key: Key
    created: int
    body: bytes
    state: str = ""
    parent: str | None = None
    run: str | None = None
    expires: float | None = None
    pinned: bool = False


class Replace(Struct, frozen=True):
    """Another state, body and run of a record; the rest stays. Refused where it is absent, or unlike expected:

    states: it must be in one of them (empty: any). version: it must be this one (None: any).
    """

    key: Key
    state: str
    body: bytes
    run: str | None = None
    states: frozenset[str] = frozenset()
    version: int | None = None


class Append(Struct, frozen=True):
    """Entries at the end of a series. Refused where the record is absent, or an id is already there or not `is_plain`.

    states: as in Replace.
    """

    key: Key
    series: str
    items: tuple[Item, ...]
    states: frozenset[str] = frozenset()


class Remove(Struct, frozen=True):
    """One entry less. Refused where it is absent. The positions of the others stay."""

    key: Key
    series: str
    id: str


class Delete(Struct, frozen=True):
    """The record and all its entries. Refused where it is absent or in none of `states` (empty: any)."""

    key: Key
    states: frozenset[str] = frozenset()


def is_storable(text: str) -> bool:
    """Whether every database can hold it. An id from a client may be anything; such a one is simply nobody's."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


Change = Put | Replace | Append | Remove | Delete


class CommitConflict(Exception):
    """A commit met something else than it expected; none of its changes was made.

    change: the first that did not fit. found: the state of the record that was there; None where there was none.
    """

    def __init__(self, change: Change, found_state: str | None) -> None:
        super().__init__(f"{type(change).__name__} of {change.key.kind} {change.key.id}: found {found_state!r}")
        self.change, self.found_state = change, found_state


class RecordChain(Struct, frozen=True):
    """A record and those it continues, the first one first. whole: no ancestor is missing."""

    records: tuple[Record, ...]
    is_complete: bool


class Bounds(Struct, frozen=True):
    """How much is kept. The least recently used goes first; what is in work (`run`) or pinned is not evicted.

    ttl: seconds after the last use. nbytes: of all bodies; half of it is for pinned records at most.
    """

    records: int = 100_000
    nbytes: int = 4 * 1024**3
    ttl: float = 30 * 86400.0


class Store(Protocol):
    """A store. Reading a record, changing it or reading its chain is using it.

    What has expired is absent at once, and removed later by `clean`. Every method may raise StoreUnavailable.
    """

    @property
    def run(self) -> str:
        """Names this opening of the store, as long as it is open. Others see when its process has died."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Lets go of everything. What was committed stays."""
        ...

    async def commit(self, *changes: Change) -> None:
        """Make all changes or none, in order; each sees those before it. Durable when this returns.

        Raises Refused, StoreFull.
        """
        ...

    async def get(self, key: Key) -> Record | None: ...

    async def chain(self, key: Key) -> RecordChain | None:
        """None where the record itself is absent."""
        ...

    async def page(
        self, owner: str, kind: str, *, after: int | None = None, limit: int = 20, descending: bool = True
    ) -> tuple[Record, ...]:
        """At most `limit` records in order of their position, beginning behind the position `after`. Uses none."""
        ...

    async def entries(
        self, key: Key, series: str, *, after: int | None = None, limit: int = 100, descending: bool = False
    ) -> tuple[SeriesEntry, ...]:
        """At most `limit` entries in order, beginning behind the position `after`; () where the record is absent."""
        ...

    async def entry(self, key: Key, series: str, id: str) -> SeriesEntry | None: ...

    async def list_abandoned(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        """Records of all owners whose `run` is NOBODY's or that of a process that has died or closed. Settle or take
        them over by a Replace that names their version: of several processes one succeeds.
        """
        ...

    async def clean(self, limit: int = 256) -> int:
        """Remove what has expired and what is over the bounds, at most `limit` records; how many were removed."""
        ...
