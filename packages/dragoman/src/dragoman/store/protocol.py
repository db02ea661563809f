"""The store protocol: records with ordered entries, changed atomically and separated by
owner. Contains no API logic.

A response, conversation, file or batch is a `Record`; its parts, if there are many, are
entries of named series. Callers define the meaning; the store guarantees durability and
atomicity, equally in every backend. The owner is part of every key, so another owner's
record is indistinguishable from an absent one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from ..core.errors import BodyTooLarge, EngineError
from ..core.fair_shares import compute_allowance

UNCLAIMED_RUN = "run_" + 32 * "0"
"""The run of a record that no process works on yet; `Store.list_abandoned` returns such
records.
"""


class StoreUnavailable(EngineError):
    """The disk is full, the file is locked or the database is unreachable. Nothing of
    the change was stored.
    """

    status = 503
    code = "store_unavailable"


class StoreFull(BodyTooLarge):
    """Records that cannot be evicted (`pinned`) have reached their limit."""

    code = "storage_limit_exceeded"


class Key(Struct, frozen=True):
    """The key of a record.

    owner: owner of the record; other owners cannot see it.
    kind: `response`, `file`, ...
    id: unique within owner and kind.
    """

    owner: str
    kind: str
    id: str


class Record(Struct, frozen=True):
    """A record as read from the store.

    position: increases with every new record; the order of lists, and their cursor.
    version: increases with every Replace.
    created, expires: Unix seconds; `expires` is None if the record has no fixed expiry.
    state: a status for compare-and-set.
    body: content, opaque to the store.
    parent: id of the record of the same owner and kind that this one continues; None
        without one.
    run: run (`Store.run`) of the process that works on it; None if none does.
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

    position: 0, 1, 2, ... in order of appending; that of a removed last entry is used
        again.
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
    """Create a record; a conflict if its key exists. The fields are those of `Record`."""

    key: Key
    created: int
    body: bytes
    state: str = ""
    parent: str | None = None
    run: str | None = None
    expires: float | None = None
    pinned: bool = False


class Replace(Struct, frozen=True):
    """Replace a record's state, body and run. A conflict if it is absent or not as
    expected.

    states: expected states; empty for any.
    version: expected version; None for any.
    expires: the new expiry, as in `Record`; UNSET keeps the former one.
    """

    key: Key
    state: str
    body: bytes
    run: str | None = None
    states: frozenset[str] = frozenset()
    version: int | None = None
    expires: float | UnsetType | None = UNSET


class Append(Struct, frozen=True):
    """Append entries to a series. A conflict if the record is absent, or an id exists
    or is not storable.

    states: expected states; empty for any.
    """

    key: Key
    series: str
    items: tuple[Item, ...]
    states: frozenset[str] = frozenset()


class Remove(Struct, frozen=True):
    """Remove an entry; a conflict if it is absent. The positions of the others do not
    change.
    """

    key: Key
    series: str
    id: str


class Delete(Struct, frozen=True):
    """Delete a record and its entries; a conflict if it is absent or not as expected.

    states: expected states; empty for any.
    """

    key: Key
    states: frozenset[str] = frozenset()


def is_storable(text: str) -> bool:
    """Whether every database can store the text.

    A client can send any string as an id; one that is not storable matches no record.
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
        super().__init__(
            f"{type(change).__name__} of {change.key.kind} {change.key.id}: found {found_state!r}"
        )
        self.change = change
        self.found_state = found_state


class RecordChain(Struct, frozen=True):
    """A record and its ancestors, oldest first.

    is_complete: whether no ancestor is missing.
    """

    records: tuple[Record, ...]
    is_complete: bool


class Bounds(Struct, frozen=True):
    """Limits of a store.

    The least recently used records of the owner that has the most are evicted first;
    records that are pinned or have a `run` are not evicted.

    Attributes:
        records: maximum number of records.
        nbytes: maximum bytes of all bodies; pinned records may use at most half, of
            which each owner has a share, see `check_pinned_bytes`.
        ttl: seconds after its last use at which a record expires.
    """

    records: int = 100_000
    nbytes: int = 4 * 1024**3
    ttl: float = 30 * 86400.0


def check_pinned_bytes(
    owner: str, used: Mapping[str, int], bounds: Bounds, owners: Collection[str]
) -> None:
    """Check the pinned records of an owner, which has just added to them.

    used: bytes of the pinned records of each owner.
    owners: those that share the limit.

    Raises:
        StoreFull: all pinned records together exceed their limit, or those of the owner
            what the shares of the others leave.
    """
    allowance = compute_allowance(bounds.nbytes // 2, owner, owners, used)
    if used.get(owner, 0) > allowance:
        raise StoreFull(
            f"The store has space for {max(0, allowance)} bytes of your files and batches; delete "
            "those that are no longer needed."
        )


class StoreHealth(Struct, frozen=True):
    """The condition of a store.

    fault: why no change can be stored; None if it can be.
    warning: what an operator must know although the store works, such as lost records.
    """

    fault: str | None = None
    warning: str | None = None


HEALTHY = StoreHealth()


class Store(Protocol):
    """A store.

    Reading a record, changing it or reading its chain counts as use. Expired records
    are treated as absent at once, and removed later by `clean`. Every method can raise
    StoreUnavailable.
    """

    @property
    def run(self) -> str:
        """Identifier of this process's opening of the store. Other processes can detect
        that the process has died.
        """
        ...

    def share(self, list_owners: Callable[[], Collection[str]]) -> None:
        """Divide the bytes of pinned records among the owners that are listed when a
        record grows. Called before `open`, or never: then there are no shares.
        """
        ...

    async def check_health(self) -> StoreHealth:
        """Return the condition of the store."""
        ...

    async def open(self) -> None:
        """Open the store. Called once, before any other method but `share`."""
        ...

    async def close(self) -> None:
        """Release all resources. Committed changes persist."""
        ...

    async def commit(self, *changes: Change) -> None:
        """Apply all changes or none, in order; each sees those before it. Durable when
        this returns.

        Raises:
            CommitConflict: a change does not fit the stored state.
            StoreFull: pinned records exceed their limit, or the owner's share of it.
        """
        ...

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None if it is absent."""
        ...

    async def load_chain(self, key: Key) -> RecordChain | None:
        """Return the record with its ancestors, or None if the record itself is absent."""
        ...

    async def load_page(
        self,
        owner: str,
        kind: str,
        *,
        after: int | None = None,
        limit: int = 20,
        descending: bool = True,
    ) -> tuple[Record, ...]:
        """Return at most `limit` records in order of position, starting after `after`.
        This does not count as use.
        """
        ...

    async def load_entries(
        self,
        key: Key,
        series: str,
        *,
        after: int | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> tuple[SeriesEntry, ...]:
        """Return at most `limit` entries in order, starting after the position `after`;
        () if the record is absent.
        """
        ...

    async def load_entry(self, key: Key, series: str, id: str) -> SeriesEntry | None:
        """Return one entry of a record, or None if it is absent."""
        ...

    async def list_abandoned(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        """Return records of all owners whose `run` is UNCLAIMED_RUN, or of a process
        that has died or closed the store.

        To claim a record, commit a Replace with its version: of several processes only
        one succeeds.
        """
        ...

    async def clean(self, limit: int = 256) -> int:
        """Remove at most `limit` expired records and records above the bounds; return
        the number removed.
        """
        ...
