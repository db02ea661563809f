"""Finds names of control tokens in user text, and breaks them with a break character.

The break character occurs in no input. It is inserted after the first character of
every name of a control token, and at a string's end (or start) if the template could
complete the string to a name. Leading and trailing white space stays outermost, so a
template can still trim it. Only the template's literal texts need to be known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

_Trie: TypeAlias = "dict[str, _Trie]"


class ControlTokens:
    """The names of control tokens, found in linear time. Matching ignores case, since a
    template may change it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._lowercase_names = frozenset(name.lower() for name in self.names)
        self.max_length = max(map(len, self._lowercase_names), default=0)
        self.prefixes = frozenset(
            name[:n] for name in self._lowercase_names for n in range(1, len(name))
        )
        self.suffixes = frozenset(
            name[n:] for name in self._lowercase_names for n in range(1, len(name))
        )
        self.find_border = _build_char_pattern(
            {char for name in self._lowercase_names for char in (name[0], name[-1])}
        ).search
        """Finds a character with which a name starts or ends."""
        self._first_chars = _build_char_pattern({name[0] for name in self._lowercase_names})
        self._last_chars = _build_char_pattern({name[-1] for name in self._lowercase_names})
        # A regex for any of the names, built as a trie, so that thousands of names cost
        # no more than one.
        root: _Trie = {}
        for name in self._lowercase_names:
            node = root
            for char in name:
                node = node.setdefault(char, {})
            node[""] = {}
        self._name_pattern = re.compile(
            _build_alternatives(root) if root else r"(?!)", re.IGNORECASE
        )

    def find_starts(self, text: str) -> Iterator[int]:
        """Yield the positions where a name starts, including overlapping names."""
        match = self._name_pattern.search(text)
        while match is not None:
            yield match.start()
            # Continue at the next character, not after the name: `finditer` would miss
            # overlapping names.
            match = self._name_pattern.search(text, match.start() + 1)

    def find_first_characters(self, text: str) -> Iterator[int]:
        """Return the positions of characters with which a name starts."""
        return (match.start() for match in self._first_chars.finditer(text))

    def ends_in_prefix(self, text: str) -> bool:
        """Whether the text ends with the beginning of a name."""
        end = text[-self.max_length :].lower()
        return bool(self._first_chars.search(end)) and any(
            end[n:] in self.prefixes for n in range(len(end))
        )

    def starts_with_suffix(self, text: str) -> bool:
        """Whether the text starts with the end of a name."""
        start = text[: self.max_length].lower()
        return bool(self._last_chars.search(start)) and any(
            start[:n] in self.suffixes for n in range(1, len(start) + 1)
        )

    def find_completed_names(self, literals: Iterable[str]) -> frozenset[str]:
        """Return the strings that form a name together with the end of one literal and
        the beginning of another.
        """
        prefixes = set[str]()
        suffixes = set[str]()
        for literal in literals:
            end = literal[-self.max_length :].lower()
            start = literal[: self.max_length].lower()
            prefixes.update(end[n:] for n in range(len(end)) if end[n:] in self.prefixes)
            suffixes.update(
                start[:n] for n in range(1, len(start) + 1) if start[:n] in self.suffixes
            )
        return frozenset(
            name[start:end]
            for name in self._lowercase_names
            for start in range(1, len(name))
            if name[:start] in prefixes
            for end in range(start + 1, len(name))
            if name[end:] in suffixes
        )


class ControlTokenBreaker:
    """Breaks the control tokens in the values of one request.

    break_char: the character to insert.
    completable: strings that the template's literals would complete to a name.
    breaks_all_starts: the template removes parts of strings, so every character that
        starts a name is broken.
    """

    def __init__(
        self,
        control_tokens: ControlTokens,
        break_char: str,
        completable: frozenset[str] = frozenset(),
        breaks_all_starts: bool = False,
    ) -> None:
        self._control_tokens = control_tokens
        self._break_char = break_char
        self._completable = completable
        self._breaks_all_starts = breaks_all_starts

    def break_text(self, text: str) -> str:
        control_tokens = self._control_tokens
        is_harmless = control_tokens.find_border(text) is None
        if is_harmless and not self._completable:
            return text
        cuts = set[int]()
        stripped = text.strip()
        begin = text.find(stripped)
        end = begin + len(stripped)
        if not is_harmless:
            # A name of a single character cannot be broken inside, so the break comes
            # before it.
            starts = control_tokens.find_starts(text)
            cuts.update(
                start if text[start] in control_tokens.names else start + 1 for start in starts
            )
            if self._breaks_all_starts:
                cuts.update(start + 1 for start in control_tokens.find_first_characters(text))
            # Both are checked, as a template may trim the value before it writes its
            # own text next to it.
            if control_tokens.ends_in_prefix(stripped) or control_tokens.ends_in_prefix(text):
                cuts.add(end)
            if control_tokens.starts_with_suffix(stripped) or control_tokens.starts_with_suffix(
                text
            ):
                cuts.add(begin)
        if (
            stripped
            and len(stripped) <= control_tokens.max_length
            and stripped.lower() in self._completable
        ):
            cuts |= {begin, end}
        if not cuts:
            return text
        return self._break_char.join(
            text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])
        )


def _build_char_pattern(characters: set[str]) -> re.Pattern[str]:
    return re.compile(
        f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else r"(?!)", re.IGNORECASE
    )


def _build_alternatives(node: _Trie) -> str:
    """Build the regular expression of a trie's node.

    A name that begins with a shorter one is left out, as only the start of a match
    matters.
    """
    if "" in node:
        return ""
    branches = [
        re.escape(char) + _build_alternatives(child) for char, child in sorted(node.items())
    ]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
