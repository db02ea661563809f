"""The last prompts of each owner, so that a new one can be compared with them. Bounded; nothing is written anywhere."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

Prompt = tuple[int, ...]


class RecentPrompts:
    """owners: whose prompts are kept, those who asked last. each: prompts of an owner and model. tokens: of a prompt
    that is kept at all.
    """

    def __init__(self, max_owners: int = 64, max_prompts: int = 8, max_tokens: int = 131_072) -> None:
        self._max_owners, self._max_prompts, self._max_tokens = max_owners, max_prompts, max_tokens
        self._prompts: OrderedDict[tuple[str, str], deque[Prompt]] = OrderedDict()

    def remember(self, owner: str, model: str, prompt: Prompt) -> None:
        if len(prompt) > self._max_tokens:
            return
        prompts = self._prompts.setdefault((owner, model), deque(maxlen=self._max_prompts))
        prompts.append(prompt)
        self._prompts.move_to_end((owner, model))
        while len(self._prompts) > self._max_owners:
            self._prompts.popitem(last=False)

    def find_closest(self, owner: str, model: str, prompt: Prompt) -> Prompt | None:
        """Of this owner's prompts the one that shares the longest beginning; of equals the latest."""
        candidates: Iterable[Prompt] = reversed(self._prompts.get((owner, model), ()))
        return max(candidates, key=lambda candidate: count_common_prefix(candidate, prompt), default=None)


def count_common_prefix(first: Prompt, second: Prompt) -> int:
    """How many tokens at the beginning are the same. Halving compares whole slices, which costs no loop."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
