"""Finding several fixed texts in a stream, however it is cut. Knows texts only: no tokens, no events."""

from __future__ import annotations

import re
from collections.abc import Sequence


class AhoCorasick:
    """An Aho-Corasick automaton: reads each character once, whatever the texts are.

    Immutable, so that all streams share it; where a search stands is one number, 0 at the beginning.
    texts: at least one, none empty.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if not texts or not all(texts):
            raise ValueError("there must be at least one text, and no text may be empty")
        self._transitions: list[dict[str, int]] = [{}]
        self._fail_links = [0]
        self._depth = [0]
        self.match_lengths = [0]
        """Of each state: the length of the longest text that ends here, 0 if none does."""
        self.match_texts = [""]
        """Of each state: that text."""
        for text in texts:
            self._add_pattern(text)
        self._build_fail_links()
        self.pending_lengths = [self._find_pending_length(state) for state in range(len(self._transitions))]
        """Of each state: how many of the characters read last may be the beginning of a text not yet whole."""
        self._first_chars = re.compile("[" + re.escape("".join(dict.fromkeys(text[0] for text in texts))) + "]")

    def _add_pattern(self, text: str) -> None:
        state = 0
        for char in text:
            next_state = self._transitions[state].get(char)
            if next_state is None:
                next_state = len(self._transitions)
                self._transitions[state][char] = next_state
                self._transitions.append({})
                self._fail_links.append(0)
                self._depth.append(self._depth[state] + 1)
                self.match_lengths.append(0)
                self.match_texts.append("")
            state = next_state
        self.match_lengths[state] = len(text)
        self.match_texts[state] = text

    def _build_fail_links(self) -> None:
        """Where to go on when a character does not fit; breadth first, so that shorter states are done."""
        queue = list(self._transitions[0].values())
        for state in queue:
            if not self.match_lengths[state]:
                self.match_lengths[state], self.match_texts[state] = (
                    self.match_lengths[self._fail_links[state]],
                    self.match_texts[self._fail_links[state]],
                )
            for char, next_state in self._transitions[state].items():
                self._fail_links[next_state] = self._step(self._fail_links[state], char)
                queue.append(next_state)

    def _find_pending_length(self, state: int) -> int:
        while state and not self._transitions[state]:
            state = self._fail_links[state]
        return self._depth[state]

    def _step(self, state: int, char: str) -> int:
        next_state = self._transitions[state].get(char)
        while next_state is None and state:
            state = self._fail_links[state]
            next_state = self._transitions[state].get(char)
        return next_state or 0

    def can_start_in(self, text: str) -> bool:
        """Whether any text could begin in this one."""
        return self._first_chars.search(text) is not None

    def search(self, text: str, start: int, state: int) -> tuple[int, int]:
        """Read on until a text ends: the position behind it and the new state; -1 for the position if none does."""
        transitions, match_lengths, pos = self._transitions, self.match_lengths, start
        while pos < len(text):
            if not state:
                start_match = self._first_chars.search(text, pos)
                if start_match is None:
                    return -1, 0
                pos = start_match.start()
            char = text[pos]
            state = transitions[state].get(char) or self._step(state, char)
            pos += 1
            if match_lengths[state]:
                return pos, state
        return -1, state


class MarkerScanner:
    """The text before the first of some marks, given as early as it can be, and then the mark."""

    def __init__(self, automaton: AhoCorasick) -> None:
        self._automaton = automaton
        self._state = 0
        self._pending = ""
        self.marker = ""
        """The mark that ended the text; of several that end together the longest."""

    def read(self, text: str, pos: int) -> tuple[int, str]:
        """Read on: the position behind the mark (or the end of the text), and what has come of the text before it."""
        end, self._state = self._automaton.search(text, pos, self._state)
        stop = len(text) if end < 0 else end
        pending = self._pending + text[pos:stop]
        pending_length = (
            self._automaton.pending_lengths[self._state] if end < 0 else self._automaton.match_lengths[self._state]
        )
        cut = len(pending) - pending_length
        self._pending = pending[cut:]
        if end >= 0:
            self.marker, self._pending = self._automaton.match_texts[self._state], ""
        return stop, pending[:cut]

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only goes on with the text."""
        return not self._pending and not self._automaton.can_start_in(text)

    def flush(self) -> str:
        """The text ends without a mark: what was held for one."""
        pending, self._pending = self._pending, ""
        return pending
