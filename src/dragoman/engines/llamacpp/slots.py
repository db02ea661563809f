"""Which of llama.cpp's slots a prompt gets: the one that holds most of its beginning. Pure.

A slot keeps what it computed last. Only those of the same salt may use it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.vision import ShownImage


def keyed(tokens: tuple[int, ...], images: Sequence[ShownImage]) -> tuple[int, ...]:
    """Tokens that are alike only where the same images are: no id is below 0."""
    if not images:
        return tokens
    keys = list(tokens)
    for image in images:
        keys[image.begin : image.end] = [~int.from_bytes(image.digest)] * (image.end - image.begin)
    return tuple(keys)


class Slots:
    """All free at first, with nothing in them."""

    def __init__(self, count: int, *, caching: bool = True) -> None:
        self._caching = caching
        self._held: list[tuple[str, tuple[int, ...]]] = [("", ())] * count
        self._free = list(range(count))
        """Least recently used first."""

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, prompt: Sequence[int], salt: str) -> tuple[int, bool]:
        """A free slot, and whether what it holds may be used."""
        best = max(self._free, key=lambda slot: self._shared(slot, prompt, salt))
        use = self._shared(best, prompt, salt) > 0
        slot = best if use else self._free[0]
        self._free.remove(slot)
        return slot, use

    def give(self, slot: int, tokens: tuple[int, ...], salt: str) -> None:
        """tokens: of which it holds what was computed."""
        self._held[slot] = (salt, tokens)
        self._free.append(slot)

    def cached_tokens(self, prompt: Sequence[int], salt: str) -> int:
        """As PrefixCache.cached_tokens: of what is free now. The last token is always computed."""
        longest = max((self._shared(slot, prompt, salt) for slot in self._free), default=0)
        return min(longest, len(prompt) - 1)

    def forget(self) -> None:
        self._held = [("", ())] * len(self._held)

    def _shared(self, slot: int, prompt: Sequence[int], salt: str) -> int:
        own, tokens = self._held[slot]
        if not self._caching or own != salt:
            return 0
        return next(
            (n for n, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b), min(len(tokens), len(prompt))
        )
