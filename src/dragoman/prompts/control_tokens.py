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
        self._lowercase_names = frozenset(name.lower() for name in self.names)
        self.max_length = max(map(len, self._lowercase_names), default=0)
        self.prefixes = frozenset(name[:n] for name in self._lowercase_names for n in range(1, len(name)))
        self.suffixes = frozenset(name[n:] for name in self._lowercase_names for n in range(1, len(name)))
        self._border_chars = _build_char_pattern(
            {char for name in self._lowercase_names for char in (name[0], name[-1])}
        )
        self._first_chars = _build_char_pattern({name[0] for name in self._lowercase_names})
        self._last_chars = _build_char_pattern({name[-1] for name in self._lowercase_names})
        self._name_pattern = _build_name_pattern(self._lowercase_names)

    def find_starts(self, text: str) -> Iterator[int]:
        """Where a name begins, overlapping ones too."""
        match = self._name_pattern.search(text)
        while match is not None:
            yield match.start()
            match = self._name_pattern.search(text, match.start() + 1)

    def find_first_characters(self, text: str) -> Iterator[int]:
        """Where any character stands that some name begins with."""
        return (match.start() for match in self._first_chars.finditer(text))

    def is_harmless(self, text: str) -> bool:
        """No name begins or ends anywhere in the text."""
        return self._border_chars.search(text) is None

    def ends_in_prefix(self, text: str) -> bool:
        """The text ends in the beginning of a name."""
        end = text[-self.max_length :].lower()
        return bool(self._first_chars.search(end)) and any(end[n:] in self.prefixes for n in range(len(end)))

    def starts_with_suffix(self, text: str) -> bool:
        """The text begins with the end of a name."""
        start = text[: self.max_length].lower()
        return bool(self._last_chars.search(start)) and any(
            start[:n] in self.suffixes for n in range(1, len(start) + 1)
        )

    def find_completed_names(self, literals: Iterable[str]) -> frozenset[str]:
        """What stands between the end of one literal and the beginning of another in some name."""
        prefixes, suffixes = self._find_halves(literals)
        if not prefixes or not suffixes:
            return frozenset()
        return frozenset(
            name[start:end]
            for name in self._lowercase_names
            for start in range(1, len(name))
            if name[:start] in prefixes
            for end in range(start + 1, len(name))
            if name[end:] in suffixes
        )

    def _find_halves(self, literals: Iterable[str]) -> tuple[set[str], set[str]]:
        prefixes, suffixes = set[str](), set[str]()
        for literal in literals:
            end, start = literal[-self.max_length :].lower(), literal[: self.max_length].lower()
            prefixes.update(end[n:] for n in range(len(end)) if end[n:] in self.prefixes)
            suffixes.update(start[:n] for n in range(1, len(start) + 1) if start[:n] in self.suffixes)
        return prefixes, suffixes


class ControlTokenBreaker:
    """Breaks the control tokens in the values of one request.

    between: strings that a template's own text would complete to a name. thorough: the template takes pieces out
    of strings, so that no character may stay that a name begins with.
    """

    def __init__(
        self,
        control_tokens: ControlTokens,
        break_char: str,
        completable: frozenset[str] = frozenset(),
        breaks_all_starts: bool = False,
    ) -> None:
        self._break_char = break_char
        self._control_tokens, self._completable, self._breaks_all_starts = (
            control_tokens,
            completable,
            breaks_all_starts,
        )

    def break_text(self, text: str) -> str:
        if self._control_tokens.is_harmless(text):
            cuts = self._find_completed_cuts(text)
        else:
            cuts = self._find_name_cuts(text) | self._find_border_cuts(text) | self._find_completed_cuts(text)
        return self._break_char.join(text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)]))

    def _find_name_cuts(self, text: str) -> set[int]:
        cuts = {
            start if self._is_single_char(text, start) else start + 1
            for start in self._control_tokens.find_starts(text)
        }
        if self._breaks_all_starts:
            cuts |= {start + 1 for start in self._control_tokens.find_first_characters(text)}
        return cuts

    def _is_single_char(self, text: str, start: int) -> bool:
        """A name of a single character: nothing can be put inside."""
        return text[start] in self._control_tokens.names

    def _find_border_cuts(self, text: str) -> set[int]:
        cuts = set[int]()
        stripped = text.strip()
        begin = text.find(stripped)
        end = begin + len(stripped)
        if self._control_tokens.ends_in_prefix(stripped) or self._control_tokens.ends_in_prefix(text):
            cuts.add(end)
        if self._control_tokens.starts_with_suffix(stripped) or self._control_tokens.starts_with_suffix(text):
            cuts.add(begin)
        return cuts

    def _find_completed_cuts(self, text: str) -> set[int]:
        stripped = text.strip() if self._completable else ""
        if not stripped or len(stripped) > self._control_tokens.max_length or stripped.lower() not in self._completable:
            return set()
        begin = text.find(stripped)
        return {begin, begin + len(stripped)}


def _build_char_pattern(characters: set[str]) -> re.Pattern[str]:
    return re.compile(f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else r"(?!)", re.IGNORECASE)


def _build_name_pattern(names: frozenset[str]) -> re.Pattern[str]:
    """Any of the names, as a trie, so that thousands of them cost no more than one."""
    root: _Trie = {}
    for name in names:
        node = root
        for char in name:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_build_alternatives(root) if root else r"(?!)", re.IGNORECASE)


def _build_alternatives(node: _Trie) -> str:
    """The shortest name suffices: it is where one begins that matters."""
    if "" in node:
        return ""
    branches = [re.escape(char) + _build_alternatives(child) for char, child in sorted(node.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
