"""Slot assignment: a prompt gets the llama.cpp slot with the longest common prefix. Pure.

A slot caches its last sequence. Only requests with the same salt may reuse it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.images import PromptImage


def build_cache_keys(tokens: tuple[int, ...], images: Sequence[PromptImage]) -> tuple[int, ...]:
    """Build cache keys that are equal only for equal images: image positions get negative keys, unlike any token id."""
    if not images:
        return tokens
    keys = list(tokens)
    for image in images:
        keys[image.begin : image.end] = [~int.from_bytes(image.digest)] * (image.end - image.begin)
    return tuple(keys)


class SlotPool:
    """A pool of slots, initially free and empty."""

    def __init__(self, count: int, *, caching: bool = True) -> None:
        self._caching = caching
        self._contents: list[tuple[str, tuple[int, ...]]] = [("", ())] * count
        self._free = list(range(count))
        """Least recently used first."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def acquire(self, prompt: Sequence[int], salt: str) -> tuple[int, bool]:
        """Acquire a free slot. Returns it, and whether its contents may be reused."""
        best = max(self._free, key=lambda slot: self._count_shared(slot, prompt, salt))
        can_reuse = self._count_shared(best, prompt, salt) > 0
        slot = best if can_reuse else self._find_unshared()
        self._free.remove(slot)
        return slot, can_reuse

    def release(self, slot: int, tokens: tuple[int, ...], salt: str) -> None:
        """Release a slot. tokens: the sequence whose computed prefix it holds."""
        self._contents[slot] = (salt, tokens)
        self._free.append(slot)

    def count_cached_tokens(self, prompt: Sequence[int], salt: str) -> int:
        """As PrefixCache.cached_tokens, over free slots. The last token is always computed."""
        longest = max((self._count_shared(slot, prompt, salt) for slot in self._free), default=0)
        return min(longest, len(prompt) - 1)

    def clear_cache(self) -> None:
        self._contents = [("", ())] * len(self._contents)

    def _find_unshared(self) -> int:
        """Find the free slot that was used the longest time ago, beside a slot in use if there is one.

        llama.cpp computes a step in as many passes as there are runs of adjacent slots in use.
        """
        free = set(self._free)
        used = set(range(len(self._contents))) - free
        return next((slot for slot in self._free if used & {slot - 1, slot + 1}), self._free[0])

    def _count_shared(self, slot: int, prompt: Sequence[int], salt: str) -> int:
        slot_salt, tokens = self._contents[slot]
        if not self._caching or slot_salt != salt:
            return 0
        return next(
            (n for n, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b), min(len(tokens), len(prompt))
        )
