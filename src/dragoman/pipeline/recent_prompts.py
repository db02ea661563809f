"""The recent prompts of each owner, for comparison with a new one. Bounded and in memory only."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

Prompt = tuple[int, ...]


class RecentPrompts:
    """An LRU cache of prompts.

    max_owners: owners whose prompts are cached; the least recently active one is evicted.
    max_prompts: prompts per owner and model.
    max_tokens: longest prompt that is cached, in tokens.
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
        """This owner's prompt with the longest common prefix; the latest of equals."""
        candidates: Iterable[Prompt] = reversed(self._prompts.get((owner, model), ()))
        return max(candidates, key=lambda candidate: count_common_prefix(candidate, prompt), default=None)


def count_common_prefix(first: Prompt, second: Prompt) -> int:
    """Length of the common prefix. Binary search over slices: comparing slices runs in C, unlike a loop over
    tokens.
    """
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        # From `low` on, as the rest is known to be equal: all slices together are no longer than the prompt.
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
