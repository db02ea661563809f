"""The last prompts of each owner, so that a new one can be compared with them. Bounded; nothing is written anywhere."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

Prompt = tuple[int, ...]


class RecentPrompts:
    """owners: whose prompts are kept, those who asked last. each: prompts of an owner and model. tokens: of a prompt
    that is kept at all.
    """

    def __init__(self, owners: int = 64, each: int = 8, tokens: int = 131_072) -> None:
        self._owners, self._each, self._tokens = owners, each, tokens
        self._kept: OrderedDict[tuple[str, str], deque[Prompt]] = OrderedDict()

    def remember(self, owner: str, model: str, prompt: Prompt) -> None:
        if len(prompt) > self._tokens:
            return
        kept = self._kept.setdefault((owner, model), deque(maxlen=self._each))
        kept.append(prompt)
        self._kept.move_to_end((owner, model))
        while len(self._kept) > self._owners:
            self._kept.popitem(last=False)

    def closest(self, owner: str, model: str, prompt: Prompt) -> Prompt | None:
        """Of this owner's prompts the one that shares the longest beginning; of equals the latest."""
        kept: Iterable[Prompt] = reversed(self._kept.get((owner, model), ()))
        return max(kept, key=lambda each: common(each, prompt), default=None)


def common(one: Prompt, other: Prompt) -> int:
    """How many tokens at the beginning are the same. Halving compares whole slices, which costs no loop."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
