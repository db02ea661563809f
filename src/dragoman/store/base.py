"""The store protocol: records with ordered entries, changed atomically and separated by owner. Contains no API logic.

Responses, conversations, files and batches are each a `Record` and, where they have many parts, `SeriesEntry`s in named
series. Callers define their meaning; the store defines what survives a crash and is equal in every backend.
An owner is part of every key, so that another owner's record is indistinguishable from an absent one.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..core.errors import BodyTooLarge, EngineError

UNCLAIMED_RUN = "run_" + 32 * "0"
"""The run of work that no process has claimed yet: `Store.list_abandoned` returns it."""


class StoreUnavailable(EngineError):
    """The disk is full, the file is locked or the database is unreachable. Nothing of the change was stored."""

    status, code = 503, "store_unavailable"


class StoreFull(BodyTooLarge):
    """Records that cannot be evicted (`pinned`) have reached their limit."""

    code = "storage_limit_exceeded"


class Key(Struct, frozen=True):
    """Identifies a record.

    kind: `response`, `file`, ...
    id: unique within owner and kind.
    """

    owner: str
    kind: str
    id: str


class Record(Struct, frozen=True):
    """A record as read from the store.

    position: increases with every stored record: the order of lists, and their cursor.
    version: increases with every Replace.
    created, expires: Unix seconds.
    state: a status for compare-and-set.
    parent: id of the record of the same owner and kind that this one continues.
    run: the process that works on it (`Store.run`).
    pinned: never evicted for lack of space.
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
    """An entry of a record's series.

    position: 0, 1, 2, ... in order of appending.
    id: unique in its series.
    """

    position: int
    body: bytes
    id: str | None = None


class Item(Struct, frozen=True):
    """An entry to append; the store assigns its position."""

    body: bytes
    id: str | None = None


class Put(Struct, frozen=True):
    """Create a record; a conflict if its key exists. Fields as in Record."""

    key: Key
    created: int
    body: bytes
    state: str = ""
    parent: str | None = None
    run: str | None = None
    expires: float | None = None
    pinned: bool = False


class Replace(Struct, frozen=True):
    """Replace a record's state, body and run. A conflict if it is absent or not as expected.

    states: expected states (empty: any).
    version: expected version (None: any).
    """

    key: Key
    state: str
    body: bytes
    run: str | None = None
    states: frozenset[str] = frozenset()
    version: int | None = None


class Append(Struct, frozen=True):
    """Append entries to a series. A conflict if the record is absent, or an id exists or is not `is_storable`.

    states: as in Replace.
    """

    key: Key
    series: str
    items: tuple[Item, ...]
    states: frozenset[str] = frozenset()


class Remove(Struct, frozen=True):
    """Remove an entry; a conflict if it is absent. The positions of the others do not change."""

    key: Key
    series: str
    id: str


class Delete(Struct, frozen=True):
    """Delete a record and its entries; a conflict if it is absent or in none of `states` (empty: any)."""

    key: Key
    states: frozenset[str] = frozenset()


def is_storable(text: str) -> bool:
    """Whether every database can store the text. A client's id can be any string; an unstorable one matches no
    record.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    # PostgreSQL's text cannot hold NUL, and no driver encodes a lone surrogate.
    return "\0" not in text


Change = Put | Replace | Append | Remove | Delete


class CommitConflict(Exception):
    """A commit found a state that it did not expect; none of its changes was applied.

    change: the first change that conflicted.
    found_state: the state of the existing record, or None if there was none.
    """

    def __init__(self, change: Change, found_state: str | None) -> None:
        super().__init__(f"{type(change).__name__} of {change.key.kind} {change.key.id}: found {found_state!r}")
        self.change, self.found_state = change, found_state


class RecordChain(Struct, frozen=True):
    """A record and its ancestors, oldest first.

    is_complete: whether no ancestor is missing.
    """

    records: tuple[Record, ...]
    is_complete: bool


class Bounds(Struct, frozen=True):
    """Limits of a store. The least recently used record is evicted first; records in work (`run`) or pinned are not.

    records: number of records.
    nbytes: bytes of all bodies; pinned records can use at most half.
    ttl: seconds after the last use.
    """

    records: int = 100_000
    nbytes: int = 4 * 1024**3
    ttl: float = 30 * 86400.0


class Store(Protocol):
    """A store. Reading a record, changing it or reading its chain counts as use.

    Expired records are absent immediately and removed later by `clean`. Every method can raise StoreUnavailable.
    """

    @property
    def run(self) -> str:
        """Identifies this opening of the store. Other processes detect when the process that owns it has died."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Release all resources. Committed changes persist."""
        ...

    async def commit(self, *changes: Change) -> None:
        """Apply all changes or none, in order; each sees those before it. Durable when this returns.

        Raises:
            CommitConflict: a change does not fit the stored state.
            StoreFull: pinned records exceed their limit.
        """
        ...

    async def get(self, key: Key) -> Record | None: ...

    async def load_chain(self, key: Key) -> RecordChain | None:
        """Return the record with its ancestors, or None if the record itself is absent."""
        ...

    async def load_page(
        self, owner: str, kind: str, *, after: int | None = None, limit: int = 20, descending: bool = True
    ) -> tuple[Record, ...]:
        """At most `limit` records in order of position, starting after the position `after`. Does not count as use."""
        ...

    async def load_entries(
        self, key: Key, series: str, *, after: int | None = None, limit: int = 100, descending: bool = False
    ) -> tuple[SeriesEntry, ...]:
        """At most `limit` entries in order, starting after the position `after`; () if the record is absent."""
        ...

    async def load_entry(self, key: Key, series: str, id: str) -> SeriesEntry | None: ...

    async def list_abandoned(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        """Records of all owners whose `run` is UNCLAIMED_RUN or that of a process that has died or closed.

        Take them over by a Replace with their version: of several processes only one succeeds.
        """
        ...

    async def clean(self, limit: int = 256) -> int:
        """Remove expired records and those above the limits, at most `limit`; return the number removed."""
        ...
