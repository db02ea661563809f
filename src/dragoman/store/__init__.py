"""What survives: responses, conversations, files and batches as records with entries. See `base` for the protocol."""

from .base import (
    NOBODY,
    Append,
    Bounds,
    Chain,
    Change,
    Delete,
    Entry,
    Item,
    Key,
    Put,
    Record,
    Refused,
    Remove,
    Replace,
    Store,
    StoreFull,
    StoreUnavailable,
)
from .memory import MemoryStore
from .sqlite import SqliteStore

__all__ = [
    "NOBODY",
    "Append",
    "Bounds",
    "Chain",
    "Change",
    "Delete",
    "Entry",
    "Item",
    "Key",
    "MemoryStore",
    "Put",
    "Record",
    "Refused",
    "Remove",
    "Replace",
    "SqliteStore",
    "Store",
    "StoreFull",
    "StoreUnavailable",
]
