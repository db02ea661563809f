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
            raise ValueError("there must be at least one text, and no text may be empty")
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self.ending = [0]
        """Of each state: the length of the longest text that ends here, 0 if none does."""
        self.text = [""]
        """Of each state: that text."""
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
                self.text.append("")
            state = following
        self.ending[state] = len(text)
        self.text[state] = text

    def _link(self) -> None:
        """Where to go on when a character does not fit; breadth first, so that shorter states are done."""
        queue = list(self._next[0].values())
        for state in queue:
            if not self.ending[state]:
                self.ending[state], self.text[state] = self.ending[self._fail[state]], self.text[self._fail[state]]
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


class Until:
    """The text before the first of some marks, given as early as it can be, and then the mark."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._state = 0
        self._held = ""
        self.mark = ""
        """The mark that ended the text; of several that end together the longest."""

    def read(self, text: str, at: int) -> tuple[int, str]:
        """Read on: the position behind the mark (or the end of the text), and what has come of the text before it."""
        end, self._state = self._marks.search(text, at, self._state)
        stop = len(text) if end < 0 else end
        known = self._held + text[at:stop]
        keep = self._marks.held[self._state] if end < 0 else self._marks.ending[self._state]
        cut = len(known) - keep
        self._held = known[cut:]
        if end >= 0:
            self.mark, self._held = self._marks.text[self._state], ""
        return stop, known[:cut]

    def passes(self, text: str) -> bool:
        """Whether this text only goes on with the text."""
        return not self._held and not self._marks.occurs(text)

    def end(self) -> str:
        """The text ends without a mark: what was held for one."""
        held, self._held = self._held, ""
        return held
