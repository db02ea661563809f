"""Persistent state: responses, conversations, files and batches, as records with
entries. `protocol` has the interface.
"""

from .memory import MemoryStore
from .protocol import (
    HEALTHY,
    UNCLAIMED_RUN,
    Append,
    Bounds,
    Change,
    CommitConflict,
    Delete,
    Item,
    Key,
    Put,
    Record,
    RecordChain,
    Remove,
    Replace,
    SeriesEntry,
    Store,
    StoreFull,
    StoreHealth,
    StoreUnavailable,
    is_storable,
)
from .sqlite import SqliteStore

__all__ = [
    "HEALTHY",
    "UNCLAIMED_RUN",
    "Append",
    "Bounds",
    "Change",
    "CommitConflict",
    "Delete",
    "Item",
    "Key",
    "MemoryStore",
    "Put",
    "Record",
    "RecordChain",
    "Remove",
    "Replace",
    "SeriesEntry",
    "SqliteStore",
    "Store",
    "StoreFull",
    "StoreHealth",
    "StoreUnavailable",
    "is_storable",
]
