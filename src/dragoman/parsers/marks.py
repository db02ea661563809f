"""Finding several fixed texts in a stream, however it is cut. Knows texts only: no tokens, no events."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Marks:
    """An Aho-Corasick automaton: reads each character once, whatever the texts are.

    Immutable, so that all streams share it; where a search stands is one number, 0 at the beginning.
    texts: at least one, none empty.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if not texts or not all(texts):
            raise ValueError("there must be at least one text, and none may be empty")
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self.ending = [0]
        """Of each state: the length of the longest text that ends here, 0 if none does."""
        for text in texts:
            self._add(text)
        self._link()
        self.held = [self._held(state) for state in range(len(self._next))]
        """Of each state: how many of the characters read last may be the beginning of a text not yet whole."""
        self._first = re.compile("[" + re.escape("".join(dict.fromkeys(text[0] for text in texts))) + "]")

    def _add(self, text: str) -> None:
        state = 0
        for char in text:
            following = self._next[state].get(char)
            if following is None:
                following = len(self._next)
                self._next[state][char] = following
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self.ending.append(0)
            state = following
        self.ending[state] = len(text)

    def _link(self) -> None:
        """Where to go on when a character does not fit; breadth first, so that shorter states are done."""
        queue = list(self._next[0].values())
        for state in queue:
            self.ending[state] = self.ending[state] or self.ending[self._fail[state]]
            for char, following in self._next[state].items():
                self._fail[following] = self._step(self._fail[state], char)
                queue.append(following)

    def _held(self, state: int) -> int:
        while state and not self._next[state]:
            state = self._fail[state]
        return self._depth[state]

    def _step(self, state: int, char: str) -> int:
        following = self._next[state].get(char)
        while following is None and state:
            state = self._fail[state]
            following = self._next[state].get(char)
        return following or 0

    def occurs(self, text: str) -> bool:
        """Whether any text could begin in this one."""
        return self._first.search(text) is not None

    def search(self, text: str, start: int, state: int) -> tuple[int, int]:
        """Read on until a text ends: the position behind it and the new state; -1 for the position if none does."""
        nexts, ending, at = self._next, self.ending, start
        while at < len(text):
            if not state:
                first = self._first.search(text, at)
                if first is None:
                    return -1, 0
                at = first.start()
            char = text[at]
            state = nexts[state].get(char) or self._step(state, char)
            at += 1
            if ending[state]:
                return at, state
        return -1, state
