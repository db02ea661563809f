"""A cache of the token ids of pieces of prompts."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

MAX_CACHED_CHARS = 4 * 1024 * 1024
"""The size of the cache, in characters, with `ENTRY_CHARS` for each entry."""


ENTRY_CHARS = 256
"""The overhead of a cache entry, in characters: pieces as short as a role are cached
too.
"""


class EncodingCache:
    """An LRU cache of the ids of pieces of prompts, since most prompts begin like an
    earlier one. Thread-safe.

    Each owner finds only its own pieces, so the latency of a request reveals nothing
    about the prompts of others.

    max_chars: the size of all entries: their characters, plus `ENTRY_CHARS` each.
    """

    def __init__(self, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._max_chars = max_chars
        self._entries: OrderedDict[tuple[str, bool, str], array[int]] = OrderedDict()
        self._lock = Lock()
        self.n_chars = 0

    def find_or_encode(
        self, owner: str, text: str, is_first: bool, encode: Callable[[], Sequence[int]]
    ) -> list[int]:
        """Return the ids of a piece.

        is_first: the piece begins a prompt, where some tokenizers encode differently.
        """
        key = (owner, is_first, text)
        with self._lock:
            cached_ids = self._entries.get(key)
            if cached_ids is not None:
                self._entries.move_to_end(key)
                return cached_ids.tolist()
        # Outside the lock: encoding the same text twice costs less than blocking other
        # threads.
        ids = list(encode())
        with self._lock:
            if key not in self._entries and len(text) + ENTRY_CHARS <= self._max_chars:
                # Four bytes a token; a list of Python integers would be several times
                # as large.
                self._entries[key] = array("i", ids)
                self.n_chars += len(text) + ENTRY_CHARS
                while self.n_chars > self._max_chars:
                    (_, _, oldest_text), _ = self._entries.popitem(last=False)
                    self.n_chars -= len(oldest_text) + ENTRY_CHARS
        return ids
