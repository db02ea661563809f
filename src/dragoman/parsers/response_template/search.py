"""Searching a stream for several patterns at once, reading each character once (Pike's machine).

The leftmost match wins; of those that begin together the longest, among them the pattern named first. Within one
pattern Python's `re` is followed: greedy and lazy mean the same. Knows no events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from .pattern import Begin, Chars, Either, End, Group, Node, Repeat, Row, Unsupported, literals

MOST_INSTRUCTIONS = 5000

Path = tuple[int, tuple[int, ...]]
"""An instruction that can be reached without reading, and the group borders passed on the way."""


class Char(Struct, frozen=True):
    """Read one character. any: every character will do."""

    source: str
    any: bool


class Split(Struct):
    """Go on at each of these, the first one preferred."""

    targets: list[int]


class Save(Struct, frozen=True):
    """A border of a group: even numbers begin one, the next odd number ends it."""

    slot: int


class Assert(Struct, frozen=True):
    """The beginning of the answer, or its end."""

    begin: bool


class Match(Struct, frozen=True):
    pattern: int


Instruction = Char | Split | Save | Assert | Match
ANY = r"[\s\S]"


class Program:
    """Several patterns as one program. Immutable once made; searches over it are `Search`."""

    def __init__(self, patterns: Sequence[Node]) -> None:
        self.literals = tuple(text for node in patterns for text in literals(node))
        """The fixed texts in the patterns."""
        self.code: list[Instruction] = []
        self.groups: list[str] = []
        """The name of each group, by its number."""
        self.starts = [self._pattern(number, node) for number, node in enumerate(patterns)]
        self.owner = self._owners()
        self.fits = [re.compile(op.source, re.DOTALL).match if isinstance(op, Char) else None for op in self.code]
        self.paths = [tuple(self._reach(at, begin=False)) for at in range(len(self.code))]
        self.first_paths = [tuple(self._reach(at, begin=True)) for at in self.starts]
        """From each start at the very beginning of an answer."""
        self.first = re.compile("|".join(self._first_sources()) or r"(?!)", re.DOTALL)
        """Any character with which a match can begin."""
        self._stays: dict[tuple[int, ...], re.Pattern[str] | None] = {}

    def _pattern(self, number: int, node: Node) -> int:
        start = len(self.code)
        self._compile(node)
        self.code.append(Match(number))
        return start

    def _owners(self) -> list[int]:
        """Which pattern each instruction belongs to."""
        owners, number = list[int](), 0
        for op in self.code:
            owners.append(number)
            number += isinstance(op, Match)
        return owners

    def _compile(self, node: Node) -> None:
        if len(self.code) > MOST_INSTRUCTIONS:
            raise Unsupported("the pattern is too large")
        match node:
            case Chars(source):
                self.code.append(Char(source, source == ANY))
            case Row(items):
                for item in items:
                    self._compile(item)
            case Either(options):
                self._either(options)
            case Repeat(item, least, most, lazy):
                self._repeat(item, least, most, lazy)
            case Group(name, item):
                self._group(name, item)
            case Begin() | End():
                self.code.append(Assert(isinstance(node, Begin)))

    def _group(self, name: str | None, item: Node) -> None:
        if name is None:
            self._compile(item)
            return
        if name not in self.groups:  # a counted repetition compiles its groups more than once
            self.groups.append(name)
        slot = 2 * self.groups.index(name)
        self.code.append(Save(slot))
        self._compile(item)
        self.code.append(Save(slot + 1))

    def _either(self, options: Sequence[Node]) -> None:
        split = Split([])
        self.code.append(split)
        exits: list[Split] = []
        for option in options:
            split.targets.append(len(self.code))
            self._compile(option)
            exits.append(Split([]))
            self.code.append(exits[-1])
        for leave in exits:
            leave.targets.append(len(self.code))

    def _repeat(self, item: Node, least: int, most: int | None, lazy: bool) -> None:
        for _ in range(least):
            self._compile(item)
        if most is None:
            loop, split = len(self.code), Split([])
            self.code.append(split)
            self._compile(item)
            self.code.append(Split([loop]))
            self._branch(split, loop + 1, lazy)
            return
        splits: list[tuple[Split, int]] = []
        for _ in range(most - least):
            splits.append((Split([]), len(self.code) + 1))
            self.code.append(splits[-1][0])
            self._compile(item)
        for split, body in splits:
            self._branch(split, body, lazy)

    def _branch(self, split: Split, body: int, lazy: bool) -> None:
        out = len(self.code)
        split.targets.extend([out, body] if lazy else [body, out])

    def _reach(self, start: int, *, begin: bool) -> Iterator[Path]:
        """What can be reached without reading, best first; an end assertion is reached and waits."""
        stack: list[Path] = [(start, ())]
        seen: set[int] = set()
        while stack:
            at, saves = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            match self.code[at]:
                case Split(targets):
                    stack.extend((target, saves) for target in reversed(targets))
                case Save(slot):
                    stack.append((at + 1, (*saves, slot)))
                case Assert(True):
                    if begin:
                        stack.append((at + 1, saves))
                case _:
                    yield at, saves

    def _first_sources(self) -> Iterator[str]:
        for start in self.starts:
            for target, _ in self.paths[start]:
                op = self.code[target]
                if isinstance(op, Char):
                    yield op.source

    def stays(self, threads: Sequence[Thread]) -> re.Pattern[str] | None:
        """Where these threads are the same again after any character that only `.` fits: what all others fit."""
        where = tuple(thread.at for thread in threads)
        if where not in self._stays:
            self._stays[where] = self._find_stays(where)
        return self._stays[where]

    def _find_stays(self, where: tuple[int, ...]) -> re.Pattern[str] | None:
        after: list[int] = []
        others: list[str] = []
        for at in where:
            op = self.code[at]
            if isinstance(op, Char) and op.any:
                if (at, ()) not in self.paths[at + 1]:
                    return None
                reached = [target for target, _ in self.paths[at + 1]]
                after += [target for target in reached if target not in after]
            elif isinstance(op, Char):
                others.append(op.source)
        after += [target for start in self.starts for target, _ in self.paths[start] if target not in after]
        if tuple(after) != where or not others:
            return None
        return re.compile("|".join(others), re.DOTALL)


class Thread(Struct, frozen=True, gc=False):
    """One way of matching: the next instruction, where it began, and the position of each border, -1 if not passed."""

    at: int
    start: int
    borders: tuple[int, ...]


class Matched(Struct, frozen=True):
    """Positions count from the beginning of the stream. captures: (name, start, end)."""

    pattern: int
    start: int
    end: int
    captures: tuple[tuple[str, int, int], ...]


class Search:
    """One search for the next match, from `position` on. first: this is the very beginning of the answer.

    longest: how many characters a match may take; a try that has taken more is given up.
    """

    def __init__(self, program: Program, position: int, *, first: bool, longest: int | None = None) -> None:
        self._program = program
        self._position = position
        self._longest = longest
        self._best: Matched | None = None
        self._threads: list[Thread] = []
        """Empty while nothing is begun; the starts are then implied."""
        if first:
            self._add_starts(self._threads, set(), program.first_paths)

    @property
    def pending(self) -> int:
        """The text before this position belongs to no match any more."""
        return min((thread.start for thread in self._threads), default=self._position)

    def passes(self, text: str) -> bool:
        """Whether this text can have no part in a match; it is then counted as read."""
        if self._threads or self._best is not None or self._program.first.search(text) is not None:
            return False
        self._position += len(text)
        return True

    def read(self, text: str, at: int) -> Matched | None:
        """Read on from text[at:] until a match is certain; None if it is not by the end of the text."""
        base = self._position - at
        while at < len(text):
            if self._best is None:
                at = self._skip(text, at)
            elif not self._threads:
                return self._best
            self._position = base + at
            if at < len(text):
                at += 1
                self._step(text[at - 1])
        return None if self._threads else self._best

    def close(self) -> Matched | None:
        """The answer has ended: the match that is there now."""
        if not self._threads and self._best is None:
            self._add_starts(self._threads, set(), None)
        seen: set[int] = set()
        while self._threads:
            threads, self._threads = self._threads, []
            for thread in threads:
                if isinstance(self._program.code[thread.at], Assert) and not self._loses(thread):
                    self._go_on(self._threads, seen, thread, self._program.paths[thread.at + 1])
        return self._best

    def _skip(self, text: str, at: int) -> int:
        """Jump over characters that change nothing but the position."""
        if not self._threads:
            found = self._program.first.search(text, at)
            return len(text) if found is None else found.start()
        others = self._program.stays(self._threads)
        if others is None:
            return at
        found = others.search(text, at)
        return max(at, (len(text) if found is None else found.start()) - 1)

    def _step(self, char: str) -> None:
        """Read the character at the position."""
        if not self._threads and self._best is None:
            self._add_starts(self._threads, set(), None)
        self._position += 1
        following: list[Thread] = []
        seen: set[int] = set()
        fits, paths = self._program.fits, self._program.paths
        for thread in self._threads:
            fit = fits[thread.at]
            if fit is not None and fit(char) and not self._loses(thread) and not self._too_long(thread):
                self._go_on(following, seen, thread, paths[thread.at + 1])
        if self._best is None and following:
            self._add_starts(following, seen, None)
        self._threads = [thread for thread in following if not self._loses(thread)]

    def _add_starts(self, out: list[Thread], seen: set[int], first: Sequence[Sequence[Path]] | None) -> None:
        nothing = (-1,) * (2 * len(self._program.groups))
        for number, start in enumerate(self._program.starts):
            paths = self._program.paths[start] if first is None else first[number]
            self._go_on(out, seen, Thread(start, self._position, nothing), paths)

    def _go_on(self, out: list[Thread], seen: set[int], thread: Thread, paths: Sequence[Path]) -> None:
        for target, slots in paths:
            if target in seen:
                continue
            seen.add(target)
            borders = thread.borders
            for slot in slots:
                borders = (*borders[:slot], self._position, *borders[slot + 1 :])
            op = self._program.code[target]
            if isinstance(op, Match):
                self._matched(op.pattern, thread.start, borders)
                # Whatever else this pattern could do is less preferred.
                seen.update(at for at, owner in enumerate(self._program.owner) if owner == op.pattern)
                return
            out.append(Thread(target, thread.start, borders))

    def _matched(self, pattern: int, start: int, borders: Sequence[int]) -> None:
        """Keep it if it is better than what was found before: earlier, by a preferred way, or longer."""
        best = self._best
        if best is None or start < best.start or best.pattern == pattern:
            better = True
        else:
            better = start == best.start and (self._position, -pattern) > (best.end, -best.pattern)
        if better:
            pairs = zip(self._program.groups, borders[::2], borders[1::2], strict=True)
            captures = tuple((name, begin, end) for name, begin, end in pairs if begin >= 0 and end >= 0)
            self._best = Matched(pattern, start, self._position, captures)

    def _loses(self, thread: Thread) -> bool:
        """Whether this thread can no longer become the match."""
        return self._best is not None and thread.start > self._best.start

    def _too_long(self, thread: Thread) -> bool:
        return self._longest is not None and self._position - thread.start > self._longest


def find_all(program: Program, text: str) -> Iterator[Matched]:
    """Every match in a whole text, one after the other, as `re.finditer`."""
    at = 0
    while at <= len(text):
        search = Search(program, at, first=at == 0)
        found = search.read(text, at) or search.close()
        if found is None:
            return
        yield found
        at = found.end + (found.end == found.start)
