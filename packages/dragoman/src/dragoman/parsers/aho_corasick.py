"""Search for several fixed texts in a stream, independent of its chunks."""

from __future__ import annotations

import re
from collections.abc import Sequence


class AhoCorasick:
    """An Aho-Corasick automaton, which reads each character once, however many texts it
    searches for.

    It is immutable and shared by all streams; the state of a search is one number,
    initially 0.

    texts: the texts to search for; at least one, none empty.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if not texts or not all(texts):
            raise ValueError("there must be at least one text, and no text may be empty")
        self._transitions: list[dict[str, int]] = [{}]
        self._fail_links = [0]
        self._depth = [0]
        self.match_lengths = [0]
        """Per state: the length of the longest text that ends here, 0 without any."""
        self.match_texts = [""]
        """Per state: that text."""
        for text in texts:
            state = 0
            for char in text:
                if char not in self._transitions[state]:
                    self._transitions[state][char] = len(self._transitions)
                    self._transitions.append({})
                    self._fail_links.append(0)
                    self._depth.append(self._depth[state] + 1)
                    self.match_lengths.append(0)
                    self.match_texts.append("")
                state = self._transitions[state][char]
            self.match_lengths[state] = len(text)
            self.match_texts[state] = text
        self._build_fail_links()
        self.pending_lengths: list[int] = []
        """Per state: how many of the last characters may be the beginning of an
        incomplete text.
        """
        for pending_state in range(len(self._transitions)):
            state = pending_state
            # A state without transitions is a complete pattern, which needs no more
            # text.
            while state and not self._transitions[state]:
                state = self._fail_links[state]
            self.pending_lengths.append(self._depth[state])
        # A regular expression, which runs in C, skips text in which no pattern can
        # begin: nearly all of a response.
        self._first_chars = re.compile(
            "[" + re.escape("".join(dict.fromkeys(text[0] for text in texts))) + "]"
        )

    def _build_fail_links(self) -> None:
        """Build each state's fail link, the state to continue from on a mismatch.

        The order is breadth first, as a fail link depends on those of shorter states.
        """
        queue = list(self._transitions[0].values())
        for state in queue:
            # A pattern may end inside a longer one that is being read: this state then
            # matches the shorter pattern.
            fail_link = self._fail_links[state]
            if not self.match_lengths[state]:
                self.match_lengths[state] = self.match_lengths[fail_link]
                self.match_texts[state] = self.match_texts[fail_link]
            for char, next_state in self._transitions[state].items():
                self._fail_links[next_state] = self._step(fail_link, char)
                queue.append(next_state)

    def _step(self, state: int, char: str) -> int:
        next_state = self._transitions[state].get(char)
        while next_state is None and state:
            state = self._fail_links[state]
            next_state = self._transitions[state].get(char)
        return next_state or 0

    def can_start_in(self, text: str) -> bool:
        """Whether any of the texts could begin in this one."""
        return self._first_chars.search(text) is not None

    def search(self, text: str, start: int, state: int) -> tuple[int, int]:
        """Search from `start` to the end of the first match.

        Return the position after the match, -1 if there is none, and the new state.
        """
        transitions = self._transitions
        match_lengths = self.match_lengths
        pos = start
        while pos < len(text):
            if not state:
                start_match = self._first_chars.search(text, pos)
                if start_match is None:
                    return -1, 0
                pos = start_match.start()
            char = text[pos]
            # State 0 is never a target of a transition, so a falsy result is a
            # mismatch.
            state = transitions[state].get(char) or self._step(state, char)
            pos += 1
            if match_lengths[state]:
                return pos, state
        return -1, state


class MarkerScanner:
    """Splits a stream at the first of several markers, and emits text as early as
    possible.
    """

    def __init__(self, automaton: AhoCorasick) -> None:
        self._automaton = automaton
        self._state = 0
        self._pending = ""
        self.marker = ""
        """The marker that ended the text, "" before; the longest if several end
        together.
        """

    def read(self, text: str, pos: int) -> tuple[int, str]:
        """Continue at `pos`. Return the position after the marker, or the end of
        `text`, and the text to emit.
        """
        end, self._state = self._automaton.search(text, pos, self._state)
        stop = len(text) if end < 0 else end
        pending = self._pending + text[pos:stop]
        # Text that may be the beginning of a marker is kept until the next chunk
        # decides.
        pending_length = (
            self._automaton.pending_lengths[self._state]
            if end < 0
            else self._automaton.match_lengths[self._state]
        )
        cut = len(pending) - pending_length
        self._pending = pending[cut:]
        if end >= 0:
            self.marker = self._automaton.match_texts[self._state]
            self._pending = ""
        return stop, pending[:cut]

    def is_plain_continuation(self, text: str) -> bool:
        """Whether `text` is emitted unchanged, as no marker can begin in it."""
        return not self._pending and not self._automaton.can_start_in(text)

    def flush(self) -> str:
        """Return the text that was held back, when the stream ends without a marker."""
        pending = self._pending
        self._pending = ""
        return pending
