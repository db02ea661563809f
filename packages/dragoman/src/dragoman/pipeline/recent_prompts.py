"""The recent prompts of each owner, to which `explain` compares a new one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

PromptIds = tuple[int, ...]


class RecentPrompts:
    """An LRU cache of prompts.

    max_owners: maximum pairs of owner and model; the least recently active one is
        evicted.
    max_prompts: maximum prompts per owner and model.
    max_tokens: length of the longest prompt that is cached, in tokens.
    """

    def __init__(
        self, max_owners: int = 64, max_prompts: int = 8, max_tokens: int = 131_072
    ) -> None:
        self._max_owners = max_owners
        self._max_prompts = max_prompts
        self._max_tokens = max_tokens
        self._prompts: OrderedDict[tuple[str, str], deque[PromptIds]] = OrderedDict()

    def remember(self, owner: str, model: str, prompt: PromptIds) -> None:
        if len(prompt) > self._max_tokens:
            return
        prompts = self._prompts.setdefault((owner, model), deque(maxlen=self._max_prompts))
        prompts.append(prompt)
        self._prompts.move_to_end((owner, model))
        while len(self._prompts) > self._max_owners:
            self._prompts.popitem(last=False)

    def find_closest(self, owner: str, model: str, prompt: PromptIds) -> PromptIds | None:
        """Return this owner's prompt with the longest common prefix; the latest of
        equally long ones.
        """
        candidates: Iterable[PromptIds] = reversed(self._prompts.get((owner, model), ()))
        return max(
            candidates, key=lambda candidate: count_common_prefix(candidate, prompt), default=None
        )


def count_common_prefix(first: PromptIds, second: PromptIds) -> int:
    """Return the length of the common prefix.

    This is a binary search over slices, whose comparison runs in C, unlike a loop over
    tokens.
    """
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        # Slices begin at `low`, as all before is known to be equal; together they are
        # no longer than the prompt.
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
