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
        self,
        owner: str,
        pieces: Sequence[str],
        encode: Callable[[str, bool], Sequence[int]],
        *,
        begins: bool,
    ) -> list[Sequence[int]]:
        """Return the ids of each piece.

        encode: encodes a piece. The flag says whether it begins a prompt, where some
            tokenizers encode differently.
        begins: whether the first piece does.
        """
        entries = self._entries
        found: list[Sequence[int]] = []
        missing: list[tuple[int, tuple[str, bool, str]]] = []
        # All at once: to take the lock and to call this for each of a conversation's
        # pieces would cost more than to look them up.
        with self._lock:
            for index, text in enumerate(pieces):
                key = (owner, begins and index == 0, text)
                cached_ids = entries.get(key)
                if cached_ids is None:
                    missing.append((index, key))
                    found.append(())
                else:
                    entries.move_to_end(key)
                    found.append(cached_ids.tolist())
        # Outside the lock: encoding the same text twice costs less than blocking other
        # threads.
        for index, key in missing:
            found[index] = self._add(key, encode(key[2], key[1]))
        return found

    def _add(self, key: tuple[str, bool, str], ids: Sequence[int]) -> Sequence[int]:
        size = len(key[2]) + ENTRY_CHARS
        with self._lock:
            if key not in self._entries and size <= self._max_chars:
                # Four bytes a token; a list of Python integers would be several times
                # as large.
                self._entries[key] = array("i", ids)
                self.n_chars += size
                while self.n_chars > self._max_chars:
                    (_, _, oldest_text), _ = self._entries.popitem(last=False)
                    self.n_chars -= len(oldest_text) + ENTRY_CHARS
        return ids
