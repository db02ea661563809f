"""Names of control tokens in strings that a user wrote: finding them, and breaking them with a mark.

A mark is one character that no input holds. It is put behind the first character of every place where a control
token's name begins, and at a string's end (or beginning) where the string could be one half of a name that a
template glues together; never outside the blanks at a string's border, so that trimming goes on as before.
Knows nothing of templates but the literal texts they are made of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

_Trie: TypeAlias = "dict[str, _Trie]"


class ControlTokens:
    """The names, and how to find them in linear time. Case does not count, since a template may change it."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._folded = frozenset(name.lower() for name in self.names)
        self.longest = max(map(len, self._folded), default=0)
        self.heads = frozenset(name[:n] for name in self._folded for n in range(1, len(name)))
        self.tails = frozenset(name[n:] for name in self._folded for n in range(1, len(name)))
        self._borders = _any_of({char for name in self._folded for char in (name[0], name[-1])})
        self._first = _any_of({name[0] for name in self._folded})
        self._last = _any_of({name[-1] for name in self._folded})
        self._pattern = _pattern(self._folded)

    def starts(self, text: str) -> Iterator[int]:
        """Where a name begins, overlapping ones too."""
        found = self._pattern.search(text)
        while found is not None:
            yield found.start()
            found = self._pattern.search(text, found.start() + 1)

    def first_characters(self, text: str) -> Iterator[int]:
        """Where any character stands that some name begins with."""
        return (found.start() for found in self._first.finditer(text))

    def harmless(self, text: str) -> bool:
        """No name begins or ends anywhere in the text."""
        return self._borders.search(text) is None

    def may_go_on(self, text: str) -> bool:
        """The text ends in the beginning of a name."""
        end = text[-self.longest :].lower()
        return bool(self._first.search(end)) and any(end[n:] in self.heads for n in range(len(end)))

    def may_have_begun(self, text: str) -> bool:
        """The text begins with the end of a name."""
        start = text[: self.longest].lower()
        return bool(self._last.search(start)) and any(start[:n] in self.tails for n in range(1, len(start) + 1))

    def completed_by(self, literals: Iterable[str]) -> frozenset[str]:
        """What stands between the end of one literal and the beginning of another in some name."""
        before, after = self._halves(literals)
        if not before or not after:
            return frozenset()
        return frozenset(
            name[start:end]
            for name in self._folded
            for start in range(1, len(name))
            if name[:start] in before
            for end in range(start + 1, len(name))
            if name[end:] in after
        )

    def _halves(self, literals: Iterable[str]) -> tuple[set[str], set[str]]:
        before, after = set[str](), set[str]()
        for literal in literals:
            end, start = literal[-self.longest :].lower(), literal[: self.longest].lower()
            before.update(end[n:] for n in range(len(end)) if end[n:] in self.heads)
            after.update(start[:n] for n in range(1, len(start) + 1) if start[:n] in self.tails)
        return before, after


class Marker:
    """Breaks the control tokens in the values of one request.

    between: strings that a template's own text would complete to a name. thorough: the template takes pieces out
    of strings, so that no character may stay that a name begins with.
    """

    def __init__(
        self, controls: ControlTokens, mark: str, between: frozenset[str] = frozenset(), thorough: bool = False
    ) -> None:
        self._mark = mark
        self._controls, self._between, self._thorough = controls, between, thorough

    def text(self, text: str) -> str:
        if self._controls.harmless(text):
            cuts = self._completed_cuts(text)
        else:
            cuts = self._name_cuts(text) | self._border_cuts(text) | self._completed_cuts(text)
        return self._mark.join(text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)]))

    def _name_cuts(self, text: str) -> set[int]:
        cuts = {start if self._alone(text, start) else start + 1 for start in self._controls.starts(text)}
        if self._thorough:
            cuts |= {start + 1 for start in self._controls.first_characters(text)}
        return cuts

    def _alone(self, text: str, start: int) -> bool:
        """A name of a single character: nothing can be put inside."""
        return text[start] in self._controls.names

    def _border_cuts(self, text: str) -> set[int]:
        cuts = set[int]()
        stripped = text.strip()
        begin = text.find(stripped)
        end = begin + len(stripped)
        if self._controls.may_go_on(stripped) or self._controls.may_go_on(text):
            cuts.add(end)
        if self._controls.may_have_begun(stripped) or self._controls.may_have_begun(text):
            cuts.add(begin)
        return cuts

    def _completed_cuts(self, text: str) -> set[int]:
        stripped = text.strip() if self._between else ""
        if not stripped or len(stripped) > self._controls.longest or stripped.lower() not in self._between:
            return set()
        begin = text.find(stripped)
        return {begin, begin + len(stripped)}


def _any_of(characters: set[str]) -> re.Pattern[str]:
    return re.compile(f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else r"(?!)", re.IGNORECASE)


def _pattern(names: frozenset[str]) -> re.Pattern[str]:
    """Any of the names, as a trie, so that thousands of them cost no more than one."""
    root: _Trie = {}
    for name in names:
        node = root
        for char in name:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_alternatives(root) if root else r"(?!)", re.IGNORECASE)


def _alternatives(node: _Trie) -> str:
    """The shortest name suffices: it is where one begins that matters."""
    if "" in node:
        return ""
    branches = [re.escape(char) + _alternatives(child) for char, child in sorted(node.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
